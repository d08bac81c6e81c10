"""AEPO: ARPO's trees with a balanced budget, plus an objective and an advantage that keep tokens of high entropy alive.

    pilot    one attempt per task that is only measured: H_root = entropy of its first turn, H_tool = mean entropy of its turns
    initial  m = clip(floor(k · sigmoid(β · (H_root − H_tool))) + 1, 1, k) attempts from the start, k = collect.group_size
    branch   if clip((u + w · dH) · max(0, 1 − penalty · c), 0, 1) ≥ p,  c = rounds in a row in which this group has branched

The entropies are ARPO's. The advantage is in credit/aepo.py, the objective in objectives/aepo.py.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.methods.authors import kl_loss
from turnwise.methods.planning import Places
from turnwise.methods.registry import Brings, method, plan
from turnwise.methods.surprise import NEEDS, Beam, First, Initial, Measured, Over, Probability, Surprise, Tree, Weight
from turnwise.util.seeds import derive

PAPER = "Dong et al. 2025, AEPO, arXiv 2510.14545"


@plan("aepo", paper=PAPER, needs=NEEDS)
class Aepo(Surprise):
    """A measured pilot divides each group between attempts from the start and branches, which pause after many in a row."""

    def __init__(
        self,
        *,
        pilot: Annotated[bool, Help("measure one attempt per task first; without it `initial` decides")] = True,
        beta: Annotated[float, Help("how much the pilot's entropies change the number of attempts from the start", low=0)] = 0.5,
        penalty: Annotated[float, Help("taken off the branch rule per round in a row with a branch", low=0, high=1)] = 0.05,
        initial: Initial = None,
        beam: Beam = 2,
        weight: Weight = 0.2,
        probability: Probability = 0.5,
        first: First = 20,
        over: Over = "sum",
        measured: Measured = "answer",
    ):
        super().__init__(initial, beam, weight, probability, first, over, measured)
        self.pilot, self.beta, self.penalty = pilot, beta, penalty

    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        return aepo_branches(u, rise, tree.streak, self.weight, self.probability, self.penalty)

    def survey(self, trees: Sequence[Tree], places: Places) -> Generator[Sequence[Start], list[Trajectory], dict[str, float]]:
        if not self.pilot:
            return {}
        pilots = [replace(tree.spare[0], policy_seed=derive(places.seed, "pilot", tree.spare[0].group)) for tree in trees]
        found = {trajectory.group: trajectory for trajectory in (yield pilots)}
        for tree in trees:
            seen = found.get(tree.spare[0].group)
            entropies = [0.0] if seen is None else [self.entropy(turn, places.vocabulary) for turn in seen.turns]
            tree.initial = aepo_initial(tree.budget, entropies, self.beta)
        return {"pilots": float(len(found)), "initial": sum(tree.initial for tree in trees) / len(trees)}


def aepo_initial(budget: int, entropies: Sequence[float], beta: float) -> int:
    """How many attempts of a group start from the beginning, by the entropies of the pilot's turns."""
    gap = beta * (entropies[0] - sum(entropies) / len(entropies))
    return max(1, min(budget, math.floor(budget * (0.5 + 0.5 * math.tanh(gap / 2))) + 1))


def aepo_branches(u: float, rise: float, streak: int, weight: float, probability: float, penalty: float) -> bool:
    """The rule of the public code."""
    return min(max((u + weight * rise) * max(0.0, 1.0 - penalty * streak), 0.0), 1.0) >= probability


@method(
    "aepo",
    paper=PAPER,
    changes="collection, credit, objective",
    costs="one pilot rollout per task that is not learned from; the engine reports entropies and 10 log-probs per token",
    evidence="code (a downstream copy); pilot in the paper's form from notes",
)
def aepo() -> dict[str, Any]:
    """ARPO's branching with a balanced budget, an entropy-aware advantage, and an upper clip that keeps gradients."""
    own = {"plan.name": "aepo", "credit.name": "aepo", "objective.name": "aepo", "collect.shared_prefix": "each"}
    authors = {"objective.aggregation": "token", "objective.dual_clip": 3.0, "objective.entropy_coef": 0.0, "credit.norm": "std"}
    return Brings(own, authors | kl_loss(0.0))
