"""T-STAR: equal steps of a group's attempts are merged into a tree, and where attempts diverge the better step is preferred.

    state   turns of a group with the same anchor, after the same state-changing actions
    step    turns of a state after which these actions are the same: the same state-changing action, or any that changed nothing
    Q(step) = mean return of the attempts that took it, each counted once
    A(step) = (Q(step) − mean R) / (std R + 1e-6)              over the trajectories of the group

A step that d attempts share has 1/d of the variance of a single return. An action changes the state if the anchor after it differs from
the one before. The signal gives `turn.action`, equal integers for equal actions, from which credit builds the tree. With `kl`, states with
different anchors are merged too (`turn.merged_state`), if the policy answers them alike after the same actions.

A fork is a state whose steps differ in value by at least `gap`: the first turns of its best and of its worst step become a pair. For the
widest forks of each group, the plan lets an attempt branch at the worse turn, see a hint with the actions and returns of both branches, and
end after one turn. Its prompt to learn with is the one without the hint. It becomes a trajectory of one turn in a separate group, so
returns give it no credit. `turn.fork` is the number of the fork: positive on the better turn, which is the corrected one if there is one,
negative on the worse turn.

    pair loss = −log σ(β · (log-ratio of the better step − log-ratio of the worse step))       log-ratio = Σ log π − log π_ref

`turn.preference` is minus its derivative by the log-prob of a turn's tokens, λ · β · σ(−β · difference), with a minus for the worse step
and 0 for all other turns; the signal computes it under the weights that sampled. Each token's loss is then its clipped loss minus
preference × log-prob: the gradient of the pair loss at those weights. Like every loss it is weighted by the aggregation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import (
    Norm,
    episode_returns,
    pair,
    segment_count,
    segment_first,
    segment_sum,
    standardise,
    token_sums,
    trajectory_groups,
)
from turnwise.data.anchors import Ints, dense
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools, Floats, Rollouts, Trajectory
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, summary
from turnwise.methods.registry import method, plan, signal
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "T-STAR, arXiv 2604.07165"
Gap = Annotated[float, Help("least difference between the best and the worst step of a fork, in deviations of the group's returns", low=0)]
Kl = Annotated[float, Help("merge states after equal actions if the estimated KL per token between the answers is below this", low=0)]
Beta = Annotated[float, Help("β of the preference", low=0)]
Weight = Annotated[float, Help("λ, weight of the preference in the loss", low=0)]
Corrections = Annotated[int, Help("forks per group for which the policy writes a corrected response; 0: the best branch's own", low=0)]
HINT = (
    "You have been here before. Then the action {better!r} led to a return of {high:g}, and {worse!r} led to {low:g}. "
    "Think again about what to do now."
)


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
        ratio = token_sums(models.policy.score(batch) - models.reference.score(batch), rollouts)
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
    values = policy.logprobs([turns[seen].prompt_ids for _, seen in asked], [turns[said].response_ids for said, _ in asked])
    mean = np.array([float(np.mean(own)) if len(own) else 0.0 for own in values]).reshape(-1, 2, 2)
    distance = ((mean[:, 0, 0] - mean[:, 0, 1]) + (mean[:, 1, 1] - mean[:, 1, 0])) / 2
    same = {key: int(anchor[home]) for (key, (home, _)), far in zip(compared.items(), distance, strict=True) if far < most}
    keys = zip(batch.rollouts.group.tolist(), before.tolist(), anchor.tolist(), strict=True)
    return np.array([same.get(((group, past), own), own) for group, past, own in keys], np.int64)


class Fork(NamedTuple):
    """Two turns of the same state: trajectory and turn number of the better and of the worse one; whether it is corrected."""

    better: tuple[Trajectory, int]
    worse: tuple[Trajectory, int]
    wide: bool


@plan("t_star", paper=PAPER, needs=("env.snapshot?",), gives=("turn.fork",))
@dataclass(kw_only=True, eq=False)
class Corrected(Plan):
    """Collect every group once; where its attempts diverge most, the policy answers again with both branches in view."""

    corrections: Corrections = 1
    gap: Gap = 1.0
    hint: Annotated[str, Help("what the policy is shown, with {better}, {worse}, {high} and {low}")] = HINT

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        roots = yield slots.groups(groups)
        forks = self.forks(roots)
        starts = {number: self.again(fork, number, slots) for number, fork in enumerate(forks, 1) if fork.wide}
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
        whole = summary(roots)  # what is logged of attempts is of whole ones alone
        counts = {"forks": len(forks), "corrections": len(corrected), "success": whole["success"], "reward": whole["reward"]}
        return Gathered([*roots, *corrected], counts)

    def forks(self, roots: list[Trajectory]) -> list[Fork]:
        """Where the attempts of a group diverge, the widest first."""
        if not roots:
            return []
        batch = Batch.of(roots)
        better, worse, difference = pairs_of(batch.rollouts, action_codes(batch.trajectories), self.gap)
        seen: Counter[int | str] = Counter()
        items = []
        for k in np.lexsort((better, -difference)):
            good, bad = _place(batch, int(better[k])), _place(batch, int(worse[k]))
            items.append(Fork(good, bad, seen[bad[0].group] < self.corrections))
            seen[bad[0].group] += 1
        return items

    def again(self, fork: Fork, number: int, slots: TaskSlots) -> Start:
        """One turn from the state of the fork, with both branches in view."""
        (good, good_t), (bad, bad_t), _ = fork
        words = {"better": good.turns[good_t].action, "worse": bad.turns[bad_t].action, "high": good.reward, "low": bad.reward}
        [start] = slots.branch(bad, bad_t, group=-number)
        return replace(start, max_turns=bad_t + 1, hint=self.hint.format(**words), forget=True)


def _place(batch: Batch, row: int) -> tuple[Trajectory, int]:
    """The trajectory and the turn number of a row."""
    k = int(np.searchsorted(batch.first_row, row, "right")) - 1
    return batch.trajectories[k], row - int(batch.first_row[k])


class Tree(NamedTuple):
    """The number of each turn's state, and of the step that it takes from there."""

    state: Ints
    step: Ints


@credit.register("t_star", paper="T-STAR, arXiv 2604.07165", needs=("turn.action", "group.peers"))
def t_star_credit(r: Rollouts, *, norm: Norm = "std") -> dict[str, Any]:
    """A step's mean return over all attempts of the group that took it, relative to the group's mean."""
    tree = tree_of(r, np.asarray(r.need("turn.action", "t_star")))
    score = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), norm)
    return {"turn.advantage": step_values(r, tree.step, score), "turn.node": tree.step, "turn.state_node": tree.state}


def step_values(r: Rollouts, step: Ints, score: Floats) -> Floats:
    """For each turn the mean `score` of the trajectories that took its step, each counted once; `score` is by trajectory."""
    size = int(step.max()) + 1
    visit, visits = pair(r.trajectory, step)
    weight = 1.0 / segment_count(visit, visits).astype(np.float64)[visit]
    total, count = segment_sum(weight * score[r.trajectory], step, size), segment_sum(weight, step, size)
    values: Floats = (total / np.maximum(count, 1e-12))[step]
    return values


def divergences(r: Rollouts, tree: Tree, gap: float) -> tuple[Ints, Ints, Floats]:
    """Forks, for rollouts in order: states whose steps differ by at least `gap` standard deviations of the group's returns. The first turn
    of the best step, the first turn of the worst one, and the difference."""
    score = standardise(episode_returns(r), trajectory_groups(r), len(r.group_labels), "std")
    value, size = step_values(r, tree.step, score), int(tree.state.max()) + 1
    orders = [np.lexsort((np.arange(len(r)), sign * value, tree.state)) for sign in (-1.0, 1.0)]
    best, worst = (segment_first(order, tree.state[order], size).astype(np.int64) for order in orders)
    difference = value[best] - value[worst]
    far = difference >= max(gap, 1e-9)
    return best[far], worst[far], difference[far]


def tree_of(r: Rollouts, action: NDArray[Any]) -> Tree:
    """States and steps of rollouts in order."""
    anchor = r.column("turn.merged_state").astype(np.int64) if r.has("turn.merged_state") else r.anchor
    code = dense(action.astype(np.int64))[1]
    place = (r.group * (int(anchor.max()) + 1) + anchor).astype(np.uint64)
    state = dense(_mixed(place, histories(r, code)).view(np.int64))[1]
    step, _ = pair(state, np.where(_changes(r), code + 1, 0))
    return Tree(state, step)


def histories(r: Rollouts, action: Ints) -> NDArray[np.uint64]:
    """A hash of the state-changing actions of the trajectory before each turn. It is a sum over (action, place in the sequence), so it
    takes one pass; equal sequences have equal hashes, and others differ in 64 bits."""
    changes = _changes(r)
    starts = np.flatnonzero(np.append(True, r.trajectory[1:] != r.trajectory[:-1]))
    lengths = np.diff(np.append(starts, len(r)))
    upto: Ints = np.cumsum(changes) - changes
    rank: Ints = upto - np.repeat(upto[starts], lengths)  # state-changing actions before this one
    item = np.where(changes, _mixed(action.astype(np.uint64), rank.astype(np.uint64)), np.uint64(0))
    total = np.cumsum(item, dtype=np.uint64) - item
    return np.asarray(total - np.repeat(total[starts], lengths))


def _changes(r: Rollouts) -> Bools:
    """Whether a turn changed the state: another anchor follows it. The last turn of a trajectory counts as a change if none is known."""
    if r.next_anchor is not None:
        return np.asarray(r.next_anchor != r.anchor)
    changed = np.ones(len(r), np.bool_)
    changed[:-1] = (r.anchor[1:] != r.anchor[:-1]) | (r.trajectory[1:] != r.trajectory[:-1])
    return changed


def _mixed(one: NDArray[np.uint64], two: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well-mixed bits of a pair of numbers."""
    mixed = one * np.uint64(0x9E3779B97F4A7C15) + (two + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


@objectives.register("t_star", paper="T-STAR, arXiv 2604.07165", needs=("turn.preference",))
def t_star_loss(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 0.2,
) -> TokenLoss:
    """PPO's clipped ratio, plus the gradient of a Bradley-Terry loss on pairs of steps where attempts diverge."""
    from turnwise.objectives.clip import clip

    loss, metrics = clip(tokens, clip_low=clip_low, clip_high=clip_high)
    preference = tokens.need("preference", "t_star")
    return TokenLoss(loss - preference * tokens.logprob, {**metrics, "preferred": preference > 0, "dispreferred": preference < 0})


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
