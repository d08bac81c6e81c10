"""T-STAR: what a signal finds out about the tree of a group's attempts before credit and loss read it.

The signal gives `turn.action` (equal integers for equal actions), from which the credit function `t_star` builds the tree. With `kl`,
states with different anchors are merged too, if the policy answers them alike after the same actions. A fork is a state whose steps differ
in value by at least `gap`: the first turns of its best and of its worst step become a pair. `turn.preference` is what the objective
`t_star` reads. The plan `t_star` (corrections.py) replaces the better turn of a pair by a corrected one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.t_star import divergences, histories, tree_of
from turnwise.data.anchors import Ints
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.methods.registry import method, signal

PAPER = "T-STAR, arXiv 2604.07165"
Gap = Annotated[float, Help("least difference between the best and the worst step of a fork, in deviations of the group's returns", low=0)]
Kl = Annotated[float, Help("merge states after equal actions if the estimated KL per token between the answers is below this", low=0)]
Beta = Annotated[float, Help("β of the preference", low=0)]
Weight = Annotated[float, Help("λ, weight of the preference in the loss", low=0)]
Corrections = Annotated[int, Help("forks per group for which the policy writes a corrected response; 0: the best branch's own", low=0)]


@signal("t_star", paper=PAPER, needs=("model.policy", "model.reference"), gives=("turn.action", "turn.preference"))
def tree(batch: Batch, models: Any, *, gap: Gap = 1.0, kl: Kl = 0.0, beta: Beta = 0.1, weight: Weight = 0.1) -> Mapping[str, Any]:
    """The action of each turn as an integer, and the preference between the best and the worst step where attempts diverge."""
    columns: dict[str, Any] = {"turn.action": action_codes(batch.trajectories)}
    rollouts = batch.rollouts
    if kl > 0:
        columns["turn.merged_state"] = merged_states(batch, columns["turn.action"], models.policy, kl)
        rollouts = rollouts.with_columns({"turn.merged_state": columns["turn.merged_state"]})
    pairs = noted_pairs(batch) if batch.has("turn.fork") else pairs_of(rollouts, columns["turn.action"], gap)
    better, worse = pairs[0], pairs[1]
    preference = np.zeros(len(batch))
    if len(better) and weight > 0:
        ratio = _sums(models.policy.score(batch) - models.reference.score(batch), rollouts)
        pull = weight * beta / (1.0 + np.exp(np.clip(beta * (ratio[better] - ratio[worse]), -700, 700)))
        np.add.at(preference, better, pull)
        np.add.at(preference, worse, -pull)
    return {**columns, "turn.preference": preference}


def action_codes(trajectories: Sequence[Trajectory]) -> Ints:
    """Equal integers for equal actions; case and spaces do not count."""
    known: dict[str, int] = {}
    words = (" ".join(turn.action.lower().split()) for trajectory in trajectories for turn in trajectory.turns)
    return np.array([known.setdefault(word, len(known)) for word in words], np.int64)


def pairs_of(rollouts: Rollouts, action: Ints, gap: float) -> tuple[Ints, Ints, Floats]:
    """The rows of the better and the worse turn of every fork, and how far they are apart."""
    r = rollouts.with_columns({"turn.action": action}).in_order()
    better, worse, difference = divergences(r, tree_of(r, r.column("turn.action")), gap)
    row = np.argsort(rollouts.positions)  # from rows in order to the batch's own
    return row[better], row[worse], difference


def noted_pairs(batch: Batch) -> tuple[Ints, Ints]:
    """The pairs that the plan noted: the number of the fork, positive on the better turn and negative on the worse one."""
    fork = batch.column("turn.fork")
    better = {int(number): row for row, number in enumerate(fork.tolist()) if number > 0}
    worse = {int(-number): row for row, number in enumerate(fork.tolist()) if number < 0}
    both = [number for number in better if number in worse]
    return np.array([better[n] for n in both], np.int64), np.array([worse[n] for n in both], np.int64)


def merged_states(batch: Batch, action: Ints, policy: Any, most: float) -> Ints:
    """The anchor of each turn; after equal actions, that of the first such turn whose prompt the policy answers alike."""
    rollouts = batch.rollouts.with_columns({"turn.action": action})
    r = rollouts.in_order()
    before = histories(r, r.column("turn.action"))[rollouts.positions]
    turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
    anchor = batch.rollouts.anchor
    first: dict[Any, int] = {}
    compared: dict[Any, tuple[int, int]] = {}
    for row, key in enumerate(zip(batch.rollouts.group.tolist(), before.tolist(), strict=True)):
        home = first.setdefault(key, row)
        if anchor[row] != anchor[home]:
            compared.setdefault((key, int(anchor[row])), (home, row))
    asked = [(said, seen) for pair in compared.values() for said in pair for seen in pair]  # each response after each prompt
    found = policy.logprobs([turns[seen].prompt_ids for _, seen in asked], [turns[said].response_ids for said, _ in asked])
    mean = np.array([float(np.mean(own)) if len(own) else 0.0 for own in found]).reshape(-1, 2, 2)
    distance = ((mean[:, 0, 0] - mean[:, 0, 1]) + (mean[:, 1, 1] - mean[:, 1, 0])) / 2
    same = {key: int(anchor[home]) for (key, (home, _)), far in zip(compared.items(), distance, strict=True) if far < most}
    keys = zip(batch.rollouts.group.tolist(), before.tolist(), anchor.tolist(), strict=True)
    return np.array([same.get(((group, past), own), own) for group, past, own in keys], np.int64)


def _sums(values: Floats, r: Rollouts) -> Floats:
    """The sum over the tokens of each turn."""
    total = np.concatenate([np.zeros(1), np.cumsum(np.asarray(values, np.float64))])
    return np.diff(total[r.token_offsets])


@method(
    "t_star",
    paper=PAPER,
    changes="plan, signal, credit, objective",
    costs="two scoring passes; one generation per correction; with kl, four scored responses per pair of states",
    evidence="notes; thresholds, β and λ are ours",
)
def t_star(*, gap: Gap = 1.0, kl: Kl = 0.0, beta: Beta = 0.1, weight: Weight = 0.1, corrections: Corrections = 1) -> dict[str, Any]:
    """Equal steps of a group's attempts share their mean return, and where attempts diverge the better step is preferred."""
    own: dict[str, Any] = {"name": "t_star", "gap": gap, "kl": kl, "beta": beta, "weight": weight}
    plan = {"plan.name": "t_star", "plan.corrections": corrections, "plan.gap": gap} if corrections else {}
    return {**plan, "signal": [own], "credit.name": "t_star", "objective.name": "t_star"}
