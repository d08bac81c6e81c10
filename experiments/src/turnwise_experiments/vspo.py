"""VSPO with PRS: rewards in stages, and valuable groups in place of those that teach nothing.

Progressive reward shaping unlocks one stage after another. A trajectory earns the share of its turns that could be parsed; once all could,
it earns the next part if it ended by itself and not at a limit; only then does the outcome count.

Credit is GRPO's; valuable groups are used again in place of groups that teach nothing:

    V(group) = (max R − mean R) · std R           large where a success is rare and possible
    uses     = 1 + copies                          as many copies as groups with equal returns, shared out in proportion to V
    A        = GRPO's · uses ^ (1 − smoothing)

`smoothing` = 0 counts each copy in full: the same as training on its rows again in the places of the groups that have no advantage.
`smoothing` = 1 ignores copies. Between the two, a group that is used often does not outweigh all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Norm, deviation, episode_returns, is_constant, standardise, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Stop
from turnwise.methods.registry import Brings, kl_loss, method, signal

PAPER = "PRS and VSPO, arXiv 2512.07478"
Parsed = Annotated[float, Help("reward for a trajectory whose turns can all be parsed; less in proportion", low=0)]
Ended = Annotated[float, Help("further reward if it also ends by itself", low=0)]
Outcome = Annotated[float, Help("factor of the environment's return, counted if both are met", low=0)]
Smoothing = Annotated[float, Help("0: a copy counts in full; 1: copies count for nothing", low=0, high=1)]


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


@credit.register("vspo", paper="PRS and VSPO, arXiv 2512.07478", needs=("group.peers",))
def vspo_credit(r: Rollouts, *, norm: Norm = "std", smoothing: Smoothing = 0.5) -> Mapping[str, Any]:
    """GRPO; valuable groups count more, by as much as groups without any signal leave free."""
    group, score, size = trajectory_groups(r), episode_returns(r), len(r.group_labels)
    centred = standardise(score, group, size, "none")
    best = np.zeros(size)
    np.maximum.at(best, group, centred)
    value = best * deviation(score, group, size)
    uses = 1 + share_out(value, int(is_constant(score, group, size).sum()))
    advantage = standardise(score, group, size, norm) * (uses ** (1.0 - smoothing))[group]
    return {"turn.advantage": advantage[r.trajectory], "group.value": value, "group.uses": uses}


def share_out(value: Floats, copies: int) -> Ints:
    """`copies` whole copies in proportion to `value`: rounded down, the rest to the largest remainders, the first of equal ones."""
    total = float(value.sum())
    if total <= 0 or copies == 0:
        return np.zeros(len(value), np.int64)
    wanted = value / total * copies
    values = np.floor(wanted).astype(np.int64)
    left = np.argsort(-(wanted - values), kind="stable")[: copies - int(values.sum())]
    values[left] += 1
    return values


@method("vspo", paper=PAPER, changes="reward, credit", costs="none", evidence="notes, part: stages, law of copies and smoothing are ours")
def vspo(
    *, smoothing: Smoothing = 0.5, staged: Annotated[bool, Help("rewards in stages, too")] = True, parsed: Parsed = 0.1, ended: Ended = 0.1
) -> dict[str, Any]:
    """Rewards in stages; groups without a signal give their place to those where a success is rare and possible."""
    settings: dict[str, Any] = {"credit.name": "vspo", "credit.smoothing": smoothing}
    settings |= {"signal": [{"name": "staged_reward", "parsed": parsed, "ended": ended}]} if staged else {}
    return Brings(settings, {"objective.name": "clip", "objective.clip_low": 0.2, "objective.clip_high": 0.2} | kl_loss(0.001))
