"""Evaluation: a fixed panel, every task as often as the others and in order, pooled counts, an interval over tasks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from turnwise.collect.source import Collects
from turnwise.data.attempts import Start
from turnwise.data.rollouts import LARGEST_REWARD, Trajectory
from turnwise.data.tasks import TaskSet
from turnwise.util.errors import TurnwiseError
from turnwise.util.metrics import numbers
from turnwise.util.seeds import derive
from turnwise.util.statistics import by_cluster, effective_attempts, wilson


@dataclass(frozen=True)
class Share:
    """How often something happened, with its 95 % interval over tasks: Wilson's, with `effective` attempts instead of n if several
    attempts were made at one task or at variants of one scenario (see `statistics.task_interval`)."""

    count: int
    n: int
    effective: float | None = None

    @classmethod
    def over_tasks(cls, outcomes: Iterable[tuple[str, bool]], clusters: Mapping[str, str] = MappingProxyType({})) -> Share:
        """Of (task, success) pairs, one per attempt, and of the clusters of those tasks that have one."""
        won: dict[str, list[bool]] = defaultdict(list)
        for task, success in outcomes:
            won[task].append(success)
        counts, attempts = [sum(each) for each in won.values()], [len(each) for each in won.values()]
        names = [clusters.get(task, task) for task in won]
        return cls(sum(counts), sum(attempts), effective_attempts(by_cluster(counts, names), by_cluster(attempts, names)))

    @property
    def rate(self) -> float:
        return self.count / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        n = float(self.n if self.effective is None else self.effective)
        return wilson(n if self.count >= self.n else n * self.rate, n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.rate:.1f} % ({self.count}/{self.n}; 95 %: {100 * low:.1f}–{100 * high:.1f})"


@dataclass
class Evaluation:
    """The result of one evaluation. `measures` are means over attempts of what the environment itself measures, such as a score or F1."""

    success: Share
    by_type: dict[str, Share]
    turns: float
    reward: float
    invalid: float
    stops: dict[str, int]
    panel_hash: str
    panel_size: int
    repeats: int
    trajectories: list[Trajectory] = field(default_factory=list, repr=False)
    types: dict[str, str] = field(default_factory=dict, repr=False)  # task type by task id, where the environment says so
    clusters: dict[str, str] = field(default_factory=dict, repr=False)  # cluster by task id, where the environment says so
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # what else the result depends on: split, temperature, recipe …
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def mean_of_types(self) -> float | None:
        """Success with every task type counted once, however many tasks it has; None if there are fewer than two types."""
        rates = [share.rate for share in self.by_type.values()]
        return math.fsum(rates) / len(rates) if len(rates) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the trajectories."""
        plain = {key: getattr(self, key) for key in ("turns", "reward", "invalid", "stops", "panel_hash", "panel_size", "repeats")}
        return {
            "success": self.success.rate,
            "successes": self.success.count,
            "attempts": self.success.n,
            "interval": list(self.success.interval),
            "by_type": {
                kind: {"success": share.rate, "n": share.n, "interval": list(share.interval)} for kind, share in self.by_type.items()
            },
            "mean_of_types": self.mean_of_types,
            "measures": self.measures,
        } | plain

    def metrics(self) -> dict[str, float]:
        """The result as metrics of a run, each name with the prefix `eval/`."""
        low, high = self.success.interval
        plain = {"success": self.success.rate, "low": low, "high": high}
        plain |= {"turns": self.turns, "reward": self.reward, "invalid": self.invalid}
        by_type = {f"type/{kind}": share.rate for kind, share in self.by_type.items()}
        measures = {f"measure/{name}": value for name, value in self.measures.items()}
        return numbers("eval", plain | by_type | measures)

    def record(self) -> dict[str, Any]:
        """All that `turnwise compare` needs: the settings, the result, and the outcome of every attempt."""
        return self.settings | self.to_dict() | {"outcomes": self.outcomes()}

    def outcomes(self) -> list[dict[str, Any]]:
        """The outcome of every attempt, in the panel's order: what paired comparisons need."""
        return [
            {
                "task": trajectory.task,
                "success": trajectory.success,
                "reward": trajectory.reward,
                "turns": len(trajectory.turns),
                "invalid": sum(not turn.valid for turn in trajectory.turns),
                "stop": trajectory.stop.value,
            }
            | ({"type": self.types[trajectory.task]} if trajectory.task in self.types else {})
            | ({"cluster": self.clusters[trajectory.task]} if trajectory.task in self.clusters else {})
            | ({"measures": measured} if (measured := measures_of(trajectory)) else {})
            for trajectory in self.trajectories
        ]


def panel_starts(panel: TaskSet, seed: int, repeats: int = 1) -> list[Start]:
    """Every task of a panel, in order, each `repeats` times with different seeds."""
    return [
        Start(task, index, index * repeats + k, derive(seed, "panel environment", task.id, k), derive(seed, "panel policy", task.id, k))
        for index, task in enumerate(panel)
        for k in range(repeats)
    ]


def run_panel(
    collector: Collects,
    panel: TaskSet,
    seed: int = 0,
    repeats: int = 1,
    change: Callable[[list[Start]], Sequence[Start]] = lambda starts: starts,
) -> Evaluation:
    """Play every task of the panel `repeats` times. The seed fixes the sampling, not the choice of tasks. `change` may add to
    the attempts."""
    trajectories = collector.run(change(panel_starts(panel, seed, repeats)))
    return evaluation_of(trajectories, panel, repeats)


def evaluation_of(trajectories: Sequence[Trajectory], panel: TaskSet, repeats: int) -> Evaluation:
    """Pooled counts over all attempts; an attempt that ended with a fault counts as a failure, and its stop reason tells why."""
    kinds = {task.id: str(task.data["task_type"]) for task in panel if "task_type" in task.data}
    clusters = {task.id: task.cluster for task in panel if task.cluster is not None}
    by_type: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.task in kinds:
            by_type[kinds[trajectory.task]].append((trajectory.task, trajectory.success))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    n = max(len(trajectories), 1)
    measured = [measures_of(trajectory) for trajectory in trajectories]
    names = sorted({name for values in measured for name in values})
    return Evaluation(
        success=Share.over_tasks(((t.task, t.success) for t in trajectories), clusters),
        by_type={kind: Share.over_tasks(won, clusters) for kind, won in sorted(by_type.items())},
        turns=len(turns) / n,
        reward=sum(t.reward for t in trajectories) / n,
        invalid=sum(not turn.valid for turn in turns) / max(len(turns), 1),
        stops=dict(Counter(t.stop.value for t in trajectories).most_common()),
        panel_hash=panel.hash,
        panel_size=len(panel),
        repeats=repeats,
        trajectories=list(trajectories),
        types=kinds,
        clusters=clusters,
        measures={name: math.fsum(values.get(name, 0.0) for values in measured) / n for name in names},
    )


def measures_of(trajectory: Trajectory) -> dict[str, float]:
    """What the environment measured of an attempt in addition to success: the finite numbers in `info["measures"]` of its last step. An
    attempt that was cut off, or lost to a fault, has none, and counts as 0 in the means."""
    info = trajectory.turns[-1].info.get("env", {}) if trajectory.turns else {}
    measured = info.get("measures") if isinstance(info, Mapping) else None
    numbers = measured.items() if isinstance(measured, Mapping) else ()
    return {str(name): float(value) for name, value in numbers if isinstance(value, (int, float)) and abs(value) <= LARGEST_REWARD}


def check_disjoint(train: TaskSet, panel: TaskSet, limit: int = 200_000, warn: Callable[[str], None] = lambda text: None) -> None:
    """Raises an error if an evaluation task is also a training task, by content. If the training set is too large to hash completely, its
    first `limit` tasks are checked, with a warning."""
    part = train if len(train) <= limit else train[:limit]
    if part is not train:
        warn(f"the training set has {len(train)} tasks; the first {limit} were checked against the evaluation panel")
    shared = panel.overlap(part)
    if shared:
        raise TurnwiseError(
            f"{len(shared)} of the {len(panel)} evaluation tasks are training tasks too (the first: {shared[0]!r}): "
            "results on them would not count. Choose another eval.split, or fewer training tasks"
        )
