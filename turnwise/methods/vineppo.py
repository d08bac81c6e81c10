"""VinePPO: every state of every attempt is valued by fresh attempts from there.

The plan makes the attempts of a group, then `branches` attempts from the state before each of their turns. Their mean return is noted on
the turn as `mc_value`, which becomes the column `turn.mc_value`. The credit function `vineppo` reads it. The fresh attempts serve as
estimates and are not learned from, unless `learn_branches` says so.

Credit of a turn is what it adds to the value of the state; no critic is trained:

    A_k = r_k + γ · V(s_{k+1}) − V(s_k)        V after the end = 0

V is the column `turn.mc_value`, the value of the state before each turn; the plan `vineppo` makes it. A state without an estimate (NaN)
takes what follows: V(s_k) = r_k + γ · V(s_{k+1}), so its turn gets exactly 0 and an earlier estimate is compared with what came after.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, reverse_scan
from turnwise.credit.segments import whiten as whitened
from turnwise.data.anchors import digest
from turnwise.data.rollouts import NOISE, Floats, Rollouts, Trajectory, Turn
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.methods.registry import Brings, method, plan, section

Share = Annotated[
    Literal["prompt", "anchor", "none"],
    Help("which states of a group share one estimate: the same turn with the same prompt, equal anchors, or none"),
]
Gamma = Annotated[float, Help("discount per turn", low=0, high=1)]
Place = tuple[int | str, int]  # a trajectory's id and a turn of it


@plan("vineppo", paper="Kazemnejad et al. 2024, VinePPO, arXiv 2410.01679", needs=("env.snapshot?",), gives=("turn.mc_value",))
@dataclass(kw_only=True, eq=False)
class Vine(Plan):
    """Attempts from the start, then further ones from the state before each of their turns, whose mean return is the state's value."""

    branches: Annotated[int, Help("fresh attempts per state", low=1)] = 9
    share: Share = "prompt"
    last: Annotated[
        int | None, Help("the last turn whose state is valued; states after it take what followed; none: all states", low=0)
    ] = None
    gamma: Gamma = 1.0
    learn_branches: Annotated[bool, Help("learn from the fresh attempts too")] = False

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        roots = yield slots.groups(groups)
        home = self.homes(roots)
        values: dict[Place, float] = {}
        learned: list[Trajectory] = []
        for t in range(max((len(root.turns) for root in roots), default=0)):  # turn by turn: what is not learned from is let go
            own = [root for root in roots if home.get((root.id, t)) == (root.id, t)]
            starts = [replace(start, branchable=False) for root in own for start in slots.branch(root, t, self.branches)]
            fresh = (yield starts) if starts else []
            values |= self.values(fresh)
            learned += fresh if self.learn_branches else []
        for root in roots:
            note(root.turns, [values.get(home.get((root.id, t), ("", -1)), np.nan) for t in range(len(root.turns))])
        counts = {"valued_states": len(values), "shared_states": len(home) - len(set(home.values()))}
        return Gathered([*roots, *self.learned(roots, learned)], counts)

    def homes(self, roots: Sequence[Trajectory]) -> dict[Place, Place]:
        """For each state that is valued, the place that it is valued at: the first one that shares its estimate."""
        first: dict[Hashable, Place] = {}
        result = {}
        for root in roots:
            until = len(root.turns) if self.last is None else self.last + 1
            for t, turn in enumerate(root.turns[:until]):
                result[root.id, t] = first.setdefault(self.key(root, t, turn), (root.id, t))
        return result

    def key(self, root: Trajectory, t: int, turn: Turn) -> Hashable:
        """What states have in common that share an estimate."""
        if self.share == "prompt":
            return root.group, root.seed, t, digest(turn.anchor), tuple(turn.prompt_ids)
        return (root.group, digest(turn.anchor)) if self.share == "anchor" else (root.id, t)

    def values(self, fresh: Sequence[Trajectory]) -> dict[Place, float]:
        """The mean return of the fresh attempts from each place."""
        returns: dict[Place, list[float]] = {}
        for branch in fresh:
            own = [turn.reward * self.gamma**k for k, turn in enumerate(branch.turns[branch.branch_t :])]
            returns.setdefault((branch.parent if branch.parent is not None else "", branch.branch_t), []).append(float(sum(own)))
        return {place: float(np.mean(own)) for place, own in returns.items()}

    def learned(self, roots: Sequence[Trajectory], fresh: Sequence[Trajectory]) -> list[Trajectory]:
        """The fresh attempts that are learned from, with the values of the states that they share with their parents."""
        parents = {root.id: root for root in roots}
        for branch in fresh:
            shared = [turn.notes["mc_value"] for turn in parents[branch.parent or 0].turns[: branch.branch_t + 1]][: len(branch.turns)]
            note(branch.turns, shared + [np.nan] * (len(branch.turns) - len(shared)))
        return list(fresh)


def note(turns: Sequence[Turn], values: Sequence[float]) -> None:
    """Note the value of the state before each turn."""
    for turn, value in zip(turns, values, strict=True):
        turn.notes = {**turn.notes, "mc_value": value}


@credit.register("vineppo", paper="Kazemnejad et al. 2024, VinePPO, arXiv 2410.01679", needs=("turn.mc_value",))
def vineppo_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    whiten: Annotated[bool, Help("subtract the mean and divide by the standard deviation over the tokens of the batch")] = False,
) -> Floats:
    """How much a turn changed the value of the state, by the mean return of fresh attempts from the states before and after it."""
    estimate = np.asarray(r.need("turn.mc_value", "vineppo"), np.float64)
    unknown = np.isnan(estimate)
    value = reverse_scan(np.where(unknown, r.reward, estimate), np.where(unknown, gamma, 0.0), r.trajectory)
    after = np.zeros(len(value))
    after[:-1] = np.where(r.trajectory[:-1] == r.trajectory[1:], gamma * value[1:], 0.0)
    advantage = r.reward + after - value
    advantage[unknown | (np.abs(advantage) <= NOISE * (np.abs(r.reward) + np.abs(after) + np.abs(value)))] = 0.0
    return whitened(advantage, None if r.tokens is None else r.tokens.astype(np.float64)) if whiten else advantage


@method(
    "vineppo",
    paper="Kazemnejad et al. 2024, VinePPO, arXiv 2410.01679",
    changes="plan, credit",
    costs="`branches` attempts per state: about turns × branches rollouts for each one that is learned from",
    evidence="code",
    options={Vine: "branches share last learn_branches"},
)
def vineppo(*, gamma: Gamma = 1.0) -> dict[str, Any]:
    """The value of every state is the mean return of fresh attempts from there, and a turn is worth what it adds to it."""
    own = section("plan", name="vineppo", gamma=gamma) | section("credit", name="vineppo", gamma=gamma)
    own |= {"collect.shared_prefix": "once"}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token"})
