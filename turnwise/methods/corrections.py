"""T-STAR's corrected responses: where the attempts of a group diverge, the policy answers again with both branches in view.

The plan collects the groups as usual and finds their forks. For the widest forks of each group an attempt branches at the worse turn, sees
a hint with the actions and returns of both branches, and ends after one turn. Its prompt to learn with is the one without the hint. It
becomes a trajectory of one turn in a separate group, so returns give it no credit. `turn.fork` is the number of the fork: positive on the
better turn, which is the corrected one if there is one, negative on the worse turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.methods.planning import Gathered, Places, Plan, Rounds
from turnwise.methods.registry import plan
from turnwise.methods.t_star import PAPER, Corrections, Gap, action_codes, pairs_of

HINT = (
    "You have been here before. Then the action {better!r} led to a return of {high:g}, and {worse!r} led to {low:g}. "
    "Think again about what to do now."
)


class Fork(NamedTuple):
    """Two turns of the same state: trajectory and turn number of the better and of the worse one; whether it is corrected."""

    better: tuple[Trajectory, int]
    worse: tuple[Trajectory, int]
    wide: bool


@plan("t_star", paper=PAPER, needs=("env.snapshot?",), gives=("turn.fork",))
class Corrected(Plan):
    """Collect every group once; where its attempts diverge most, the policy answers again with both branches in view."""

    def __init__(
        self,
        *,
        corrections: Corrections = 1,
        gap: Gap = 1.0,
        hint: Annotated[str, Help("what the policy is shown, with {better}, {worse}, {high} and {low}")] = HINT,
    ):
        self.corrections, self.gap, self.hint = corrections, gap, hint

    def gather(self, places: Places, groups: int) -> Rounds:
        roots = yield places.groups(groups)
        forks = self.forks(roots)
        starts = {number: self.again(fork, number, places) for number, fork in enumerate(forks, 1) if fork.wide}
        more = (yield list(starts.values())) if starts else []
        made = {one.id: one for one in more}
        corrected = []
        for number, fork in enumerate(forks, 1):
            better, t = fork.better
            one = made.get(starts[number].number) if number in starts else None
            if one is not None and len(one.turns) > fork.worse[1]:
                better, t = replace(one, turns=one.turns[fork.worse[1] :], parent=None, branch_t=0), 0
                corrected.append(better)
            better.turns[t].notes = {**better.turns[t].notes, "fork": number}
            bad = fork.worse[0].turns[fork.worse[1]]
            bad.notes = {**bad.notes, "fork": -number}
        counts = {"forks": float(len(forks)), "corrections": float(len(corrected))}
        n = max(len(roots), 1)  # what is logged of attempts is of whole ones alone
        counts |= {"success": sum(root.success for root in roots) / n, "reward": sum(root.reward for root in roots) / n}
        return Gathered([*roots, *corrected], counts)

    def forks(self, roots: list[Trajectory]) -> list[Fork]:
        """Where the attempts of a group diverge, the widest first."""
        if not roots:
            return []
        batch = Batch.of(roots)
        better, worse, difference = pairs_of(batch.rollouts, action_codes(batch.trajectories), self.gap)
        seen: Counter[int | str] = Counter()
        found = []
        for k in np.lexsort((better, -difference)):
            good, bad = _place(batch, int(better[k])), _place(batch, int(worse[k]))
            found.append(Fork(good, bad, seen[bad[0].group] < self.corrections))
            seen[bad[0].group] += 1
        return found

    def again(self, fork: Fork, number: int, places: Places) -> Start:
        """One turn from the state of the fork, with both branches in view."""
        (good, good_t), (bad, bad_t), _ = fork
        words = {"better": good.turns[good_t].action, "worse": bad.turns[bad_t].action, "high": good.reward, "low": bad.reward}
        [start] = places.branch(bad, bad_t, group=-number)
        return replace(start, max_turns=bad_t + 1, hint=self.hint.format(**words), forget=True)


def _place(batch: Batch, row: int) -> tuple[Trajectory, int]:
    """The trajectory and the turn number of a row."""
    k = int(np.searchsorted(batch.first_row, row, "right")) - 1
    return batch.trajectories[k], row - int(batch.first_row[k])
