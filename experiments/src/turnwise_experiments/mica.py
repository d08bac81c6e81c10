"""MICA: a judge scores the state before the first and after every turn; the difference is the reward of the turn.

The judge is your own function: `judge(task, turns) -> float`, where `turns` are those played so far, from none to all. It is called once
per turn and once per trajectory for the start.

Credit adds what a turn gained and what was gained from it on, each normalised among peers:

    r_k = Φ(after turn k) − Φ(before it)                 column turn.potential_gain
    A_k = z(r_k) + mix · z(Σ_{j ≥ k} γ^{j−k} r_j)         z: (x − mean) / (std + 1e-6) over the peers

Peers are all turns of the group, or its turns with the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.config.references import is_reference
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, pair, reverse_scan, standardise
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Turn
from turnwise.data.tasks import Task
from turnwise.methods.registry import Brings, RecipeDiscount, method, signal
from turnwise.util.errors import TurnwiseError

PAPER = "MICA, arXiv 2603.06194"
JUDGE = Kind("judge", takes=("task", "turns"), gives=("float", "int"), example="def mine(task, turns) -> float")
Judge = Annotated[str, Help("your function of (task, turns), larger is better: path/to/file.py:NAME")]
GAIN = "turn.potential_gain"
Mix = Annotated[float, Help("weight of the gains to come next to the turn's own", low=0)]
Peers = Annotated[Literal["group", "depth"], Help("compare with all turns of the group, or with those of the same number")]


@signal("potential", paper=PAPER, gives=("turn.potential", GAIN))
class Potential:
    """The judge's potential after every turn, and how much the turn raised it."""

    def __init__(self, *, judge: Judge = ""):
        if not is_reference(judge):
            raise TurnwiseError(
                f"signal potential needs a judge, and has {judge!r}: write a function of (task, turns) that returns a number, and name it "
                "with method.judge=path/to/file.py:NAME (or judge=… in the signal's section)"
            )
        self.judge: Callable[[Task, Sequence[Turn]], float] = load_reference(judge, JUDGE)

    def __call__(self, batch: Batch, models: Any) -> Mapping[str, Any]:
        potential, gain = np.zeros(len(batch)), np.zeros(len(batch))
        for k, trajectory in enumerate(batch.trajectories):
            task, turns = batch.task(k), trajectory.turns
            scores = np.array([self._score(task, turns[:n]) for n in range(len(turns) + 1)])
            potential[batch.rows(k)], gain[batch.rows(k)] = scores[1:], np.diff(scores)
        return {"turn.potential": potential, GAIN: gain}

    def _score(self, task: Task, turns: Sequence[Turn]) -> float:
        score = float(self.judge(task, turns))
        if not math.isfinite(score):
            raise TurnwiseError(
                f"the judge of signal potential gave {score} after {len(turns)} turns of task {task.id!r}; a number is needed"
            )
        return score


@credit.register("mica", paper="MICA, arXiv 2603.06194", needs=("group.peers", GAIN))
def mica_credit(r: Rollouts, *, gamma: TurnDiscount = 0.95, mix: Mix = 1.0, peers: Peers = "group") -> Floats:
    """The gain in potential of a turn plus the discounted gains from it on, normalised separately among peers."""
    gain = np.asarray(r.column(GAIN), np.float64)
    segment, size = (r.group, len(r.group_labels)) if peers == "group" else pair(r.group, r.t)
    to_come = reverse_scan(gain, gamma, r.trajectory)
    return standardise(gain, segment, size, "std") + mix * standardise(to_come, segment, size, "std")


@method(
    "mica",
    paper=PAPER,
    changes="reward, credit",
    costs="one call of the judge per turn",
    evidence="notes, part: peers, mix and gamma are ours",
    options={Potential: "judge", mica_credit: "mix peers"},
)
def mica(*, gamma: RecipeDiscount = None) -> dict[str, Any]:
    """A judge's potential of the state gives every turn its own reward."""
    return Brings({"signal": [{"name": "potential"}], "credit.name": "mica", "credit.gamma": gamma})
