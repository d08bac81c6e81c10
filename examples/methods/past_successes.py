"""A buffer of past successes that replaces a failed attempt where a whole group failed.

A group of attempts that all fail has no credit to give: every attempt is as bad as the others. If an earlier batch solved the same task,
one of its successes takes the place of one failure, and the group has something to compare with again.

A plan decides what is attempted and what is learned from. What it remembers is kept in the run's checkpoints (`state`), so a run that was
killed and resumed replaces the same attempts. The stored attempt was sampled by older weights: `objective.importance = "truncate"` in the
recipe weighs its tokens by how likely they are today.
"""

from __future__ import annotations

from typing import Annotated, Any

from turnwise import Trajectory, methods
from turnwise.config.options import Help
from turnwise.data.schema import from_rows, to_rows
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots


@methods.plan("past_successes")
class PastSuccesses(Plan):
    """Collect every group once; where a whole group failed, a success of an earlier batch replaces one attempt."""

    def __init__(
        self,
        *,
        per_task: Annotated[int, Help("successes kept per task; those added or used last stay", low=1)] = 2,
        tasks: Annotated[int, Help("tasks kept; the one whose last success is the oldest goes first", low=1)] = 256,
    ):
        self.per_task, self.tasks = per_task, tasks
        self.kept: dict[str, list[Trajectory]] = {}  # by task, the one with the newest success last

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        # `yield` hands out attempts to make and gets them back finished. A plan may do so as often as it likes.
        found = yield slots.groups(groups)
        by_group: dict[int | str, list[Trajectory]] = {}
        for trajectory in found:
            by_group.setdefault(trajectory.group, []).append(trajectory)
        chosen: list[Trajectory] = []
        replaced = 0
        for attempts in by_group.values():
            if (past := self.past(attempts, slots)) is not None:
                attempts, replaced = [*attempts[:-1], past], replaced + 1
            chosen += attempts
        self.remember(found)
        # Counts are logged as collect/replaced and collect/buffer.
        return Gathered(chosen, {"replaced": float(replaced), "buffer": float(sum(map(len, self.kept.values())))})

    def past(self, attempts: list[Trajectory], slots: TaskSlots) -> Trajectory | None:
        """The stored success for a group that failed as a whole; none if it did not fail, or nothing is stored."""
        stored = self.kept.get(attempts[0].task, [])
        if not stored or any(attempt.success for attempt in attempts):
            return None
        stored.append(stored.pop(0))  # in turn: the next group that fails at this task gets another one
        # A copy with the label of the group that it joins, and an id that no other trajectory of this batch has.
        return slots.adopt(stored[-1], attempts[0].group)

    def remember(self, found: list[Trajectory]) -> None:
        """Keep this batch's successes. Replacements are not among them: they are kept already."""
        for trajectory in found:
            if trajectory.success:
                own = self.kept.pop(trajectory.task, [])  # taken out and put back: now it is the last
                self.kept[trajectory.task] = [*own, trajectory][-self.per_task :]
        for task in list(self.kept)[: -self.tasks]:
            del self.kept[task]

    def state(self) -> dict[str, Any]:
        """The buffer as plain JSON: one row per turn, with its tokens, log-probs and pictures, and what the engine reported."""
        return {"rows": [to_rows([trajectory], tokens=True, reports=True) for own in self.kept.values() for trajectory in own]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.kept = {}
        for rows in state["rows"]:
            [trajectory] = from_rows(rows)
            self.kept.setdefault(trajectory.task, []).append(trajectory)
