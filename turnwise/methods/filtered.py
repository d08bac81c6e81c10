"""A filter on groups: only those with the most signal are learned from. It goes around any plan, and is what StarPO-S is made of.

Groups are sorted by a score, usually the spread of their returns:

    top_k   keeps a share of all groups
    top_p   keeps the shortest prefix that holds a share of the total score (mass="linear") or of its softmax (mass="softmax")
    min_p   keeps all groups with at least a share of the best score

If no group is kept, the iteration has no update. Several such iterations in a row end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Ints, Trajectory, alike
from turnwise.methods.planning import Gathered, Places, Plan, Rounds, by_group
from turnwise.methods.registry import plan, plans
from turnwise.util.errors import TurnwiseError

Strategy = Literal["top_k", "top_p", "min_p"]
Mass = Literal["linear", "softmax"]
Metric = Literal["reward_std", "reward_mean", "reward_sum", "entropy", "entropy_std", "length"]
Prefer = Literal["largest", "smallest"]
TINY = 1e-10  # scores up to this count as 0


@plan("filtered")
class Filtered(Plan):
    """Keep only the groups with the best score of what another plan collects, by top-k, top-p or min-p."""

    def __init__(
        self,
        *,
        base: Annotated[str, Help("the plan that collects")] = "plain",
        options: Annotated[dict[str, Any] | None, Help("its options")] = None,
        strategy: Annotated[Strategy, Help("which groups are kept: a share of groups, of the total score, or of the best score")] = "top_p",
        keep: Annotated[float, Help("that share", low=0, high=1)] = 0.9,
        mass: Annotated[Mass, Help("with top_p: shares of the scores themselves, or of their softmax")] = "linear",
        metric: Annotated[Metric, Help("a group's score, from the returns, token entropies or lengths of its attempts")] = "reward_std",
        prefer: Annotated[Prefer, Help("whether large or small scores are kept")] = "largest",
        zero: Annotated[bool, Help("whether groups with a score of 0 can be kept")] = False,
        slack: Annotated[float, Help("with top_p and linear: the prefix may fall short of its share by this much score", low=0)] = 0.01,
        patience: Annotated[int, Help("end the run after this many iterations in a row in which no group was kept", low=1)] = 5,
    ):
        self.inner: Plan = plans[base].make(options or {}, plans.kind)  # type: ignore[assignment]
        self.rule: dict[str, Any] = {"strategy": strategy, "keep": keep, "mass": mass, "prefer": prefer, "zero": zero, "slack": slack}
        self.metric, self.patience, self.empty = metric, patience, 0

    def gather(self, places: Places, groups: int) -> Rounds:
        gathered = yield from self.inner.gather(places, groups)
        members = list(by_group(gathered.trajectories).values())
        chosen = select([score(group, self.metric) for group in members], **self.rule)
        self.empty = 0 if len(chosen) else self.empty + 1
        if self.empty >= self.patience:
            raise TurnwiseError(
                f"plan 'filtered': no group was kept in {self.empty} iterations in a row, the last one had {len(members)}. All attempts of "
                "a group end alike: use easier tasks, larger groups (collect.group_size) or a longer warm start, or keep such groups "
                "(plan.zero = true)"
            )
        counts = {"groups_scored": float(len(members)), "groups_kept": float(len(chosen)), "empty_in_a_row": float(self.empty)}
        return Gathered([trajectory for number in chosen for trajectory in members[number]], gathered.counts | counts)

    def evaluated(self, start: Start) -> Start:
        return self.inner.evaluated(start)

    def evaluation(self, places: Places, starts: Sequence[Start]) -> list[Start]:
        return self.inner.evaluation(places, starts)

    def state(self) -> dict[str, Any]:
        return {"empty": self.empty, "base": self.inner.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.empty = int(state["empty"])
        self.inner.load_state(state["base"])

    @staticmethod
    def needs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the other plan needs, and the entropies where the score is made of them."""
        own = ("token.entropy",) if str(options["metric"]).startswith("entropy") else ()
        return own + plans[options["base"]].needed(options.get("options") or {})


def score(group: Sequence[Trajectory], metric: Metric = "reward_std") -> float:
    """The score of one group: of its attempts' returns, mean entropies or lengths, the mean, the sum or the sample deviation."""
    if metric == "length":
        values = [float(sum(len(turn.response_ids) for turn in one.turns)) for one in group]
    elif metric.startswith("entropy"):
        values = [_entropy(one) for one in group]
    else:
        values = [one.reward for one in group]
    if metric.endswith("_std"):
        return 0.0 if alike(values) else float(np.std(values, ddof=1))
    return float(np.sum(values) if metric == "reward_sum" else np.mean(values))


def select(
    scores: Sequence[float],
    strategy: Strategy = "top_p",
    keep: float = 0.9,
    mass: Mass = "linear",
    prefer: Prefer = "largest",
    zero: bool = False,
    slack: float = 0.01,
) -> Ints:
    """The numbers of the groups that are kept, in order. Of equal scores the earlier groups come first."""
    values = np.asarray(scores, np.float64)
    left = np.flatnonzero(zero | (np.abs(values) > TINY))
    if not len(left):
        return left
    sign = 1.0 if prefer == "largest" else -1.0
    if strategy == "min_p":
        return np.asarray(left[_near_best(values[left], keep, prefer)])
    ordered = left[np.argsort(-sign * values[left], kind="stable")]
    if strategy == "top_k":
        count = max(1, int(keep * len(values)))
    elif keep >= 1:
        count = len(left)
    elif mass == "softmax":
        share = np.exp(sign * values[ordered] - (sign * values[ordered]).max())
        count = int(np.searchsorted(np.cumsum(share / share.sum()), keep)) + 1
    else:
        count = _prefix(values[ordered], keep * values[left].sum() - slack)
    return np.sort(ordered[:count])


def _near_best(values: Floats, keep: float, prefer: Prefer) -> Any:
    """Which scores are within a share of the best one."""
    if prefer == "largest":
        return values >= keep * values.max() - TINY
    return keep * values <= values.min() + TINY


def _prefix(ordered: Floats, threshold: float) -> int:
    """How many of the scores, from the front, add up to the threshold. Scores of 0 and below never help; 0 if it is out of reach."""
    positive = np.cumprod(ordered > 0).sum()
    sums = np.concatenate([np.zeros(1), np.cumsum(ordered[:positive])])
    reached = np.flatnonzero(sums >= threshold)
    return int(reached[0]) if len(reached) else 0


def _entropy(trajectory: Trajectory) -> float:
    """The mean over turns of the mean entropy of a turn's tokens, as the engine reported it."""
    means = [float(np.mean(turn.reports["entropy"])) for turn in trajectory.turns if len(turn.reports.get("entropy", ()))]
    return float(np.mean(means)) if means else 0.0
