"""A filter on groups: only those with the most signal are learned from. It goes around any plan, and is what StarPO-S is made of.

Groups are sorted by a score, usually the spread of their returns; `group_scores.py` says which of them are kept. If no group is kept, the
iteration has no update. Several such iterations in a row end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.methods.group_scores import Mass, Metric, Prefer, Strategy, score, select
from turnwise.methods.planning import Gathered, Places, Plan, Rounds
from turnwise.methods.registry import plan, plans
from turnwise.util.errors import TurnwiseError


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
        found = yield from self.inner.gather(places, groups)
        by_group: dict[int | str, list[Trajectory]] = {}
        for trajectory in found.trajectories:
            by_group.setdefault(trajectory.group, []).append(trajectory)
        members = list(by_group.values())
        chosen = select([score(group, self.metric) for group in members], **self.rule)
        self.empty = 0 if len(chosen) else self.empty + 1
        if self.empty >= self.patience:
            raise TurnwiseError(
                f"plan 'filtered': no group was kept in {self.empty} iterations in a row, the last one had {len(members)}. All attempts of "
                "a group end alike: use easier tasks, larger groups (collect.group_size) or a longer warm start, or keep such groups "
                "(plan.zero = true)"
            )
        counts = {"groups_scored": float(len(members)), "groups_kept": float(len(chosen)), "empty_in_a_row": float(self.empty)}
        return Gathered([trajectory for number in chosen for trajectory in members[number]], found.counts | counts)

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
