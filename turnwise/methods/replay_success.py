"""Replay of successes (ARPO for GUI agents): where a whole group fails, its first attempt is replaced by a stored success at the same task.

    buffer[task]    first in, first out, of size `size`: every attempt with a return above `stored_above`, added after the batch is composed
    a group is helped if    std0(R) < flat   and   mean(R) < poor   and the buffer has a success at its task

The stored success is drawn uniformly. How its tokens are weighed is up to the objective: old log-probs are recomputed with the current
policy, so the ratio starts at 1 (the authors' way, which is biased), or importance weights correct for the weights that sampled it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.data.rollouts import Trajectory
from turnwise.data.schema import from_rows, to_rows
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import Brings, method, plan, section
from turnwise.util.seeds import derive

Size = Annotated[int, Help("successes kept per task; the oldest goes first", low=1)]


@plan("replay_success", needs=("group.peers",))
@dataclass(kw_only=True, eq=False)
class ReplaySuccess(Plan):
    """Every group once; where a whole group fails, a stored success replaces its first attempt."""

    size: Size = 8
    stored_above: Annotated[float, Help("an attempt is stored if its return is above this")] = 0.1
    flat: Annotated[float, Help("a group is helped if the standard deviation of its returns is below this", low=0)] = 0.05
    poor: Annotated[float, Help("… and their mean is below this")] = 0.2
    kept: dict[str, list[Trajectory]] = field(default_factory=dict, init=False)  # by task, the oldest first

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        finished = yield slots.groups(groups)
        chosen: list[Trajectory] = []
        replaced = 0
        for group, attempts in by_group(finished).items():
            stored = self.kept.get(attempts[0].task, [])
            if stored and self.fails([attempt.reward for attempt in attempts]):
                drawn = random.Random(derive(slots.seed, "replay_success", group)).choice(stored)
                attempts, replaced = [slots.adopt(drawn, group), *attempts[1:]], replaced + 1
            chosen += attempts
        self.store(finished)
        return Gathered(chosen, {"replaced": replaced, "buffer": sum(map(len, self.kept.values()))})

    def fails(self, returns: Sequence[float]) -> bool:
        """Whether a group has nothing to compare, and little reward."""
        return float(np.std(returns)) < self.flat and float(np.mean(returns)) < self.poor

    def store(self, attempts: Sequence[Trajectory]) -> None:
        """Keep this batch's successes. Replayed ones are not among them: they are kept already."""
        for trajectory in attempts:
            if trajectory.reward > self.stored_above:
                self.kept[trajectory.task] = [*self.kept.get(trajectory.task, []), trajectory][-self.size :]

    def state(self) -> dict[str, Any]:
        return {"kept": [to_rows([trajectory], tokens=True, reports=True) for own in self.kept.values() for trajectory in own]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.kept = {}
        for rows in state["kept"]:
            [trajectory] = from_rows(rows, "the buffer of successes")
            self.kept.setdefault(trajectory.task, []).append(trajectory)


@method(
    "replay_success",
    paper="Lu et al. 2025, ARPO for GUI agents, arXiv 2505.16282",
    changes="plan",
    costs="one pass for old log-probs",
    evidence="code",
    former={"importance": ("recipe", "set objective.importance")},
)
def replay_success(*, size: Size = 8) -> dict[str, Any]:
    """A group that fails as a whole gets a stored success of the same task in place of its first attempt."""
    own = section("plan", name="replay_success", size=size) | {"credit.name": "grpo", "learner.old_logprobs": "learner"}
    clip = {"objective.name": "clip", "objective.clip_low": 0.2, "objective.clip_high": 0.3, "objective.aggregation": "token"}
    return Brings(own, clip | {"objective.kl": "off", "objective.importance": "none", "credit.norm": "std"})
