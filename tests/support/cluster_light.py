"""An engine's process without a model: words by chance, corridors to walk. It starts in a second, and dies when it is told to.

What it says depends on the seeds of an attempt and on the weights, which are one number. So a run that was disturbed can be compared with
one that was not, and it can be seen which weights a group was played with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collect_cases import WORDS, WordContext, WordEngine, numbered
from toy_env import Corridor

from turnwise.agent.base import Parsed
from turnwise.cluster.work import Spec
from turnwise.collect.collector import Collector
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.source import LocalSource
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Response, Sampling, WeightReceiver
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Plain, TaskSlots
from turnwise.util.seeds import derive

GROUPS, SIZE = 4, 2
STRIKES = 120.0  # seconds for the test to kill a node, which ends the wait


class WeightedEngine(WordEngine):
    """Answers with a word drawn from the request's seed and the weights."""

    version, weight = 0, 0

    def poll(self, wait: bool = True) -> list[Response]:
        request = self.waiting.pop(0)
        chance = derive(request.seed, self.weight) % 100
        word = 1 if chance < 60 else chance % 3
        return [Response(request.key, (word, 3), (-0.5, -0.1), version=self.version)]


def read(ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
    return WORDS[ids[0]], Parsed(WORDS[ids[0]])


@dataclass
class LightParts:
    """`strikes` is called at every turn, when `turns` counts them and `group` is that of the attempt."""

    hooks: Hooks
    workers: int = 0
    strikes: Any = None
    env: Any = Corridor
    engine: WeightedEngine = field(default_factory=WeightedEngine)
    turns: int = 0
    group: int | str = -1

    def __post_init__(self) -> None:
        self.pool = Pool(self.env, GROUPS * SIZE, workers=self.workers, timeout=20.0)

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def pids(self) -> list[int]:
        return self.pool.pids

    @property
    def environments(self) -> float:
        return self.pool.busy

    def collector(self, spec: Spec) -> Collector:
        policy = ModelPolicy(self.engine, WordContext, read, Sampling())
        return Collector(self.pool, policy, max_turns=6, hooks=replace(self.hooks, on_turn=self.on_turn), snapshots=spec.training)

    def on_turn(self, trajectory: Trajectory) -> None:
        self.turns, self.group = self.turns + 1, trajectory.group
        self.hooks.on_turn(trajectory)
        if self.strikes is not None:
            self.strikes(self)

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None) -> list[Turn]:
        return [Turn(text, response=f"{text} {seed} {self.engine.weight}", version=self.version) for text in texts]

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return [start.task.id for start in starts]

    def load_ahead(self, task: Task) -> None:
        self.pool.load_ahead(task)

    def publish(self, version: int, weights: Any) -> None:
        self.engine.version, self.engine.weight = version, int(weights)

    def close(self) -> None:
        self.pool.close()


def task_slots() -> TaskSlots:
    return TaskSlots(numbered(7), seed=3, group_size=SIZE)


class Learner:
    """Learns one number: from what was said, and in which order."""

    def __init__(self) -> None:
        self.weight = 7
        self.weights: list[int] = []  # after each update
        self.learned: list[int | str] = []
        self.ages: list[int] = []
        self.batches: list[list[Any]] = []

    def update(self, trajectories: Sequence[Trajectory], version: int) -> None:
        self.batches.append([(one.id, one.stop.value, [turn.action for turn in one.turns]) for one in trajectories])
        self.learned += [one.id for one in trajectories]
        self.ages += [version - turn.version for one in trajectories for turn in one.turns]
        self.weight = derive(self.weight, repr(self.batches[-1])) % 1000
        self.weights.append(self.weight)


def run(source: LocalSource, engine: Any, learner: Learner, batches: int = 3) -> Learner:
    """A whole run: collect, learn, publish."""
    for number, found in enumerate(source.batches(Plain(), n=batches)):
        learner.update(found.trajectories, number)
        engine.publish(number + 1)
    return learner


def alone(batches: int = 3, env: Any = Corridor) -> Learner:
    """The same in this process, undisturbed."""
    learner, parts = Learner(), LightParts(Hooks(), env=env)
    parts.publish(0, learner.weight)

    class Published(WeightReceiver):
        def publish(self, version: int, weights: Any = None) -> None:
            self.version = version
            parts.publish(version, learner.weight)

    engine = Published()
    source = LocalSource(task_slots(), GROUPS, lambda: replace(parts.collector(Spec()), snapshots=False), lambda: engine)
    run(source, engine, learner, batches)
    parts.close()
    return learner


class Sender:
    """Sends the learner's number."""

    def __init__(self, learner: Learner):
        self._learner, self._version, self._weight = learner, -1, 0

    def publish(self, version: int) -> None:
        self._version, self._weight = version, self._learner.weight

    def send(self, handle: Any) -> Any:
        return handle.publish.remote(self._version, self._weight)

    def close(self) -> None: ...
