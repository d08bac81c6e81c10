"""SeeUPO: the turns of an attempt are updated one after another, from the last to the first.

    c = 1                                                        one number per trajectory
    for t from the last turn number to 0:
        one step on all turns t, with advantages A · c           the objective's ratio starts at 1: old log-probs are those before this step
        s = exp(mean over the turn's tokens of (new − before))   log-probs after and before the step, bounded
        c ← clip(c · s, low, high)

A trajectory that ends before turn t keeps its c. Rows are matched by trajectory, so attempts may have any number of turns.

Credit compares turns with turns of the same number, as if each number were an agent of its own:

    A = R − mean R         over the group's attempts that have a turn t
    A ← (A − mean A) / std A       over all turns t of the batch, where std A > 1e-6
    A ← clamp(A, ±bound)

R is the return of the whole attempt. Without the division by a group's own deviation, easy and hard tasks keep their size; the deviation of
the batch sets the scale. The reverse order of updates is the schedule `seeupo`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import deviation, episode_returns, pair, standardise, token_sums
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.registry import Brings, KlCoef, kl_loss, method, schedule, section
from turnwise.methods.steps import ScheduleView, Step

Low = Annotated[float, Help("smallest ratio, of one turn and accumulated", low=0, high=1)]
High = Annotated[float, Help("largest ratio, of one turn and accumulated", low=1)]
SMALLEST_STD = 1e-6


@schedule("seeupo", needs=("turn.advantage",))
def seeupo_order(view: ScheduleView, *, low: Low = 0.8, high: High = 1.2) -> Generator[Step, Any, None]:
    """One step per turn number, the last turns first; advantages are weighed by how much later steps have changed the trajectory."""
    r, advantage = view.batch.rollouts, view.batch.column("turn.advantage")
    weight = np.ones(len(r.trajectory_labels))
    before = view.score()
    for number in range(int(r.t.max()), -1, -1):
        turns = np.flatnonzero(r.t == number)
        yield Step(rows=turns, columns={"turn.advantage": advantage * weight[r.trajectory]}, refresh=("old_logprob",))
        if number > 0:
            now = view.score()
            # of each turn the geometric mean of its tokens' ratios; 1 for a turn without tokens
            ratio = np.clip(np.exp(token_sums(now - before, r) / np.maximum(np.diff(r.token_offsets), 1)), low, high)
            weight[r.trajectory[turns]] = np.clip(weight[r.trajectory[turns]] * ratio[turns], low, high)
            before = now


@credit.register("seeupo", paper="SeeUPO, arXiv 2602.06554", needs=("group.peers",))
def seeupo_credit(
    r: Rollouts,
    *,
    bound: Annotated[float, Help("advantages are clamped to plus and minus this", low=0)] = 3.0,
    baseline: Annotated[Literal["turn", "group"], Help("mean over the group's attempts that have this turn, or over all")] = "turn",
) -> Floats:
    """The return relative to the group's mean, standardised over all turns with the same number, and clamped."""
    score = episode_returns(r)
    if baseline == "turn":
        segment, size = pair(r.group, r.t)
        centred = standardise(score[r.trajectory], segment, size, "none")  # its mean over a turn number is 0 by construction
    else:
        of_group = standardise(score, r.per_trajectory(r.group), len(r.group_labels), "none")[r.trajectory]
        centred = standardise(of_group, r.t, int(r.t.max()) + 1, "none")
    std = deviation(centred, r.t, int(r.t.max()) + 1)
    return np.clip(centred / np.where(std > SMALLEST_STD, std, 1.0)[r.t], -bound, bound)


@method(
    "seeupo",
    paper="SeeUPO, arXiv 2602.06554",
    changes="credit, objective, schedule",
    costs="one scoring pass over the batch and one optimiser step per turn number",
    evidence="code",
    options={seeupo_order: "low high"},
)
def seeupo(*, kl_coef: KlCoef = None) -> dict[str, Any]:
    """Turns are updated in reverse order, each weighed by what the later updates changed."""
    parts = {"schedule.name": "seeupo", "credit.name": "seeupo", "objective.name": "gspo"}
    own = parts | section("learner", epochs=1, minibatches=1) | kl_loss(kl_coef)
    return Brings(own, {"objective.aggregation": "turn"} | kl_loss(0.002))
