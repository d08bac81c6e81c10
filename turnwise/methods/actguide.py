"""ActGuide-RL: where all attempts of a group fail, the smallest number of reference actions is looked for with which an attempt succeeds.

    a group is hard if max R ≤ threshold
    low, high = 0, K                                   K reference actions (of the environment's expert)
    while low < high:   k = (low + high) // 2          at most `searches` times; `probes` attempts are shown the first k actions
        high = k if one of them has R > threshold else low = k + 1
    N attempts that are shown the first `low` actions take the place of the group

The actions are a text in the prompt, and not played for the agent. A guided attempt is learned from without it: the ratio of the loss is
π(z | no guidance) / π_old(z | guidance), which is what `Start.forget` and old log-probs of the engine make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import Brings, kl_loss, method, plan

WORDS = "These actions are the beginning of a way that works. It may be incomplete; more actions may be needed.\n{actions}"
KEEP = {"keep": (False, "remove it: guided attempts take the place of the group")}


@dataclass
class Search:
    """The search for one group: its attempts, its task's reference actions, what is left to look at, and the probes."""

    first: Start
    actions: list[str]
    low: int = 0
    high: int = 0
    probes: int = 0

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def narrow(self, works: bool) -> None:
        """`middle` actions were shown: with them an attempt succeeded, or none did."""
        if works:
            self.high = self.middle
        else:
            self.low = self.middle + 1


@plan("actguide", needs=("env.expert", "group.peers"), former=KEEP)
@dataclass(kw_only=True, eq=False)
class ActGuide(Plan):
    """Every group once; a group that fails as a whole is attempted again with the smallest helpful number of reference actions."""

    old_logprobs = "engine"

    threshold: Annotated[float, Help("an attempt succeeds if its return is above this")] = 0.0
    searches: Annotated[int, Help("how often the interval is halved at most", low=1)] = 5
    probes: Annotated[int, Help("attempts per number of actions that is tried", low=1)] = 2
    words: Annotated[str, Help("what is said; {actions} stands for the numbered actions")] = WORDS

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = slots.groups(groups)
        finished = by_group((yield starts))
        hard = [group for group, attempts in finished.items() if not self.works(attempts)]
        searches = self.begin(slots, {start.group: start for start in starts}, hard)
        for _ in range(self.searches):
            if not (open_ones := [search for search in searches.values() if search.low < search.high]):
                break
            probed = by_group((yield [start for search in open_ones for start in self.guided(slots, search, search.middle, self.probes)]))
            for search in open_ones:
                tried = probed.get(search.first.group, [])
                search.probes += len(tried)
                search.narrow(self.works(tried))
        guided = (yield [s for one in searches.values() for s in self.guided(slots, one, one.low, slots.group_size)]) if searches else []
        again = by_group(guided)
        finished |= again
        return Gathered([one for group in finished.values() for one in group], self.counts(hard, searches, again))

    def begin(self, slots: TaskSlots, first: dict[int | str, Start], hard: Sequence[int | str]) -> dict[int | str, Search]:
        """A search for every hard group whose task the expert can do."""
        tasks = {first[group].task.id: first[group].task for group in hard}
        shown = {one.task: [turn.action for turn in one.turns] for one in (slots.demonstrations(list(tasks.values())) if tasks else [])}
        plans = {group: shown.get(first[group].task.id, []) for group in hard}
        return {group: Search(first[group], actions, high=len(actions)) for group, actions in plans.items() if actions}

    def guided(self, slots: TaskSlots, search: Search, k: int, n: int) -> list[Start]:
        """n attempts in the group of a search that are shown the first k actions."""
        lines = "\n".join(f"{number}. {action}" for number, action in enumerate(search.actions[:k], 1))
        hint = self.words.replace("{actions}", lines) if k else ""
        return [replace(start, hint=hint, forget=True) for start in slots.more(search.first, n)]

    def works(self, attempts: Sequence[Trajectory]) -> bool:
        return any(attempt.reward > self.threshold for attempt in attempts)

    def counts(self, hard: Sequence[Any], searches: dict[Any, Search], again: dict[Any, list[Trajectory]]) -> dict[str, float]:
        rescued = sum(self.works(again.get(group, [])) for group in searches)
        probes = sum(search.probes for search in searches.values())
        shown = sum(search.low for search in searches.values()) / max(len(searches), 1)
        return {"hard_groups": len(hard), "rescued_groups": rescued, "probes": probes, "shown_actions": shown}


@method(
    "actguide",
    paper="ActGuide-RL, arXiv 2605.12004",
    changes="plan, objective",
    costs="for a group that fails: up to `searches` × `probes` further attempts, then a second group",
    evidence="code",
    options={ActGuide: "threshold"},
    former=KEEP,
)
def actguide() -> dict[str, Any]:
    """A group that fails is shown the fewest reference actions that help, and learns to do without them."""
    own = {"plan.name": "actguide", "credit.name": "grpo", "objective.name": "clip", "learner.old_logprobs": "engine"}
    return Brings(own, {"objective.aggregation": "token"} | kl_loss(0.001))
