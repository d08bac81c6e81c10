"""DPEPO: one policy drives several copies of a task at once, and is discouraged from repeating itself.

The environment is played with the option `parallel`. The signal gives each turn its weight W:

    W = ½ · (ω^dup + mean over the copies that act of (α^c1 + γ^c2 + β^c3) / 3)

    dup   actions of this turn that are not "look", minus the distinct ones among them
    c1    how often the copy did this action in earlier turns
    c2    how often it did this pair (its action before, this action) in earlier turns
    c3    how often the pair occurs in the other copies that act, this turn included

A copy's first action has no pair: c2 = c3 = 0. A turn without any action has the weight `idle`.

Credit compares the outcomes of the group, and weights them by how new a turn's actions are:

    A(τ) = (O(τ) − mean O) / (std O + 1e-6)      O = 1 if any copy succeeds, otherwise 0; over the turns of the group
    A_k  = A · W_k if A ≥ 0, otherwise A · (2 − W_k)

With `weighting` "step", the authors' default, the statistics are over turns: each has the O of its trajectory, so long trajectories weigh
more. W is the column `turn.diversity`, from 0 (everything was tried before) to 1; the signal `dpepo` gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Norm, Weighting, episode_returns, standardise, trajectory_groups
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.methods.authors import VERL_AGENT
from turnwise.methods.registry import Brings, method, signal

PAPER = "DPEPO, arXiv 2604.24320"
LOOK = "look"
Outcome = Annotated[Literal["success", "return"], Help("what is compared: whether a copy succeeded, or the return")]


@signal("dpepo", paper=PAPER, gives=("turn.diversity",))
def diversity(
    batch: Batch,
    models: Any,
    *,
    alpha: Annotated[float, Help("factor per earlier use of the action in its copy", low=0, high=1)] = 0.8,
    beta: Annotated[float, Help("factor per use of the pair of actions in other copies", low=0, high=1)] = 0.95,
    gamma: Annotated[float, Help("factor per earlier use of the pair of actions in its copy", low=0, high=1)] = 0.95,
    omega: Annotated[float, Help("factor per action that another copy takes in the same turn", low=0, high=1)] = 0.8,
    idle: Annotated[float, Help("weight of a turn without any action", low=0, high=1)] = 0.5,
) -> Mapping[str, Any]:
    """How little a turn repeats what was done before or is done in other copies of the task, from 0 to 1."""
    found = [weight for trajectory in batch.trajectories for weight in weights(trajectory, alpha, beta, gamma, omega, idle)]
    return {"turn.diversity": np.array(found)}


def weights(trajectory: Trajectory, alpha: float, beta: float, gamma: float, omega: float, idle: float) -> list[float]:
    """W of each turn of a trajectory."""
    done: dict[str, Counter[str]] = {}  # by copy: its actions so far
    pairs: dict[str, Counter[tuple[str, str]]] = {}  # and its pairs of actions
    last: dict[str, str] = {}
    found = []
    for turn in trajectory.turns:
        acts = {str(copy): str(act).strip() for copy, act in turn.info.get("env", {}).get("acts", {}).items()}
        own = {copy: pairs.setdefault(copy, Counter()) for copy in acts}
        now = {copy: (last[copy], act) for copy, act in acts.items() if copy in last}
        parts = []
        for copy, act in acts.items():
            pair = now.get(copy)
            inside = 0 if pair is None else own[copy][pair]
            beside = 0 if pair is None else sum(own[other][pair] + (now.get(other) == pair) for other in acts if other != copy)
            parts.append((alpha ** done.setdefault(copy, Counter())[act] + gamma**inside + beta**beside) / 3)
        moves = [act for act in acts.values() if act != LOOK]
        found.append((omega ** (len(moves) - len(set(moves))) + sum(parts) / len(parts)) / 2 if acts else idle)
        for copy, act in acts.items():
            done[copy][act] += 1
            if copy in now:
                own[copy][now[copy]] += 1
            last[copy] = act
    return found


@credit.register("dpepo", paper="DPEPO, arXiv 2604.24320", needs=("turn.diversity", "group.peers"))
def dpepo_credit(r: Rollouts, *, outcome: Outcome = "success", norm: Norm = "std", weighting: Weighting = "step") -> Floats:
    """Episode credit; turns that try something new gain more from a good outcome and lose less by a bad one."""
    if outcome == "success" and r.has("trajectory.success"):
        score = r.column("trajectory.success").astype(np.float64)
    else:
        score = episode_returns(r)
    if weighting == "step":
        credit = standardise(score[r.trajectory], r.group, len(r.group_labels), norm)
    else:
        credit = standardise(score, trajectory_groups(r), len(r.group_labels), norm)[r.trajectory]
    weight = np.asarray(r.need("turn.diversity", "dpepo"), np.float64)
    return np.asarray(credit * np.where(credit >= 0, weight, 2.0 - weight))


@method(
    "dpepo",
    paper=PAPER,
    changes="environment, signal, credit",
    costs="prompts and responses that are `copies` times as long; no further rollouts",
    evidence="code",
)
def dpepo(
    *,
    copies: Annotated[int, Help("copies of the task that are played at once", low=2, high=64)] = 4,
    weighting: Weighting = "step",
) -> dict[str, Any]:
    """One policy plays several copies of a task at once, and gains less by what it repeats."""
    own = {"env.options.parallel": copies, "signal": [{"name": "dpepo"}], "credit.name": "dpepo", "credit.weighting": weighting}
    return Brings(own, VERL_AGENT | {"credit.norm": "std"})
