"""SeeUPO: the turns of an attempt are updated one after another, from the last to the first.

    c = 1                                                        one number per trajectory
    for t from the last turn number to 0:
        one step on all turns t, with advantages A · c           the objective's ratio starts at 1: old log-probs are those before this step
        s = exp(mean over the turn's tokens of (new − before))   log-probs after and before the step, bounded
        c ← clip(c · s, low, high)

A trajectory that ends before turn t keeps its c. Rows are matched by trajectory, so attempts may have any number of turns.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.authors import KlCoef, kl_loss
from turnwise.methods.registry import Brings, method, schedule
from turnwise.methods.steps import ScheduleView, Step

Low = Annotated[float, Help("smallest ratio, of one turn and accumulated", low=0, high=1)]
High = Annotated[float, Help("largest ratio, of one turn and accumulated", low=1)]


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
            ratio = turn_ratios(now - before, r, low, high)
            weight[r.trajectory[turns]] = np.clip(weight[r.trajectory[turns]] * ratio[turns], low, high)
            before = now


def turn_ratios(change: NDArray[Any], r: Rollouts, low: float, high: float) -> Floats:
    """For each turn the geometric mean of its tokens' ratios, bounded; 1 for a turn without tokens. `change` has a log-ratio per token."""
    offsets = r.token_offsets
    total = np.diff(np.concatenate([np.zeros(1), np.cumsum(change, dtype=np.float64)])[offsets])
    ratio: Floats = np.clip(np.exp(total / np.maximum(np.diff(offsets), 1)), low, high)
    return ratio


@method(
    "seeupo",
    paper="SeeUPO, arXiv 2602.06554",
    changes="credit, objective, schedule",
    costs="one scoring pass over the batch and one optimiser step per turn number",
    evidence="code",
)
def seeupo(*, low: Low = 0.8, high: High = 1.2, kl_coef: KlCoef = None) -> dict[str, Any]:
    """Turns are updated in reverse order, each weighed by what the later updates changed."""
    own = {
        "credit.name": "seeupo",
        "objective.name": "gspo",
        "schedule.name": "seeupo",
        "schedule.low": low,
        "schedule.high": high,
        "learner.epochs": 1,
        "learner.minibatches": 1,
        **kl_loss(kl_coef),
    }
    return Brings(own, {"objective.aggregation": "turn"} | kl_loss(0.002))
