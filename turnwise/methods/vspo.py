"""VSPO with PRS: rewards in stages, and valuable groups in place of those that teach nothing.

Progressive reward shaping unlocks one stage after another. A trajectory earns the share of its turns that could be parsed; once all could,
it earns the next part if it ended by itself and not at a limit; only then does the outcome count. Credit is in `turnwise/credit/vspo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.vspo import Smoothing
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop
from turnwise.methods.authors import kl_loss
from turnwise.methods.registry import Brings, method, signal

PAPER = "PRS and VSPO, arXiv 2512.07478"
Parsed = Annotated[float, Help("reward for a trajectory whose turns can all be parsed; less in proportion", low=0)]
Ended = Annotated[float, Help("further reward if it also ends by itself", low=0)]
Outcome = Annotated[float, Help("factor of the environment's return, counted if both are met", low=0)]


@method("vspo", paper=PAPER, changes="reward, credit", costs="none", evidence="notes, part: stages, law of copies and smoothing are ours")
def vspo(
    *, smoothing: Smoothing = 0.5, staged: Annotated[bool, Help("rewards in stages, too")] = True, parsed: Parsed = 0.1, ended: Ended = 0.1
) -> dict[str, Any]:
    """Rewards in stages; groups without a signal give their place to those where a success is rare and possible."""
    settings: dict[str, Any] = {"credit.name": "vspo", "credit.smoothing": smoothing}
    settings |= {"signal": [{"name": "staged_reward", "parsed": parsed, "ended": ended}]} if staged else {}
    return Brings(settings, {"objective.name": "clip", "objective.clip_low": 0.2, "objective.clip_high": 0.2} | kl_loss(0.001))


@signal("staged_reward", paper=PAPER, gives=("turn.reward", "trajectory.stage"))
def staged_reward(batch: Batch, models: Any, *, parsed: Parsed = 0.1, ended: Ended = 0.1, outcome: Outcome = 1.0) -> Mapping[str, Any]:
    """The reward in stages, on the last turn: responses that can be parsed, then an end, then the outcome."""
    reward, stage = np.zeros(len(batch)), np.zeros(len(batch.trajectories), np.int64)
    for k, trajectory in enumerate(batch.trajectories):
        valid = float(np.mean([turn.valid for turn in trajectory.turns]))
        stage[k] = 0 if valid < 1 else 1 if trajectory.stop is not Stop.DONE else 2
        earned = (parsed * valid, ended * (stage[k] >= 1 and trajectory.stop is Stop.DONE), outcome * trajectory.reward * (stage[k] == 2))
        reward[batch.rows(k)[-1]] = sum(earned)
    return {"turn.reward": reward, "trajectory.stage": stage}
