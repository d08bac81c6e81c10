"""ARPO: half of a group's attempts branch off from others after observations that surprised the policy.

    dH(t) = h(answer to the observation before turn t) − h(first turn)        h: entropy of the first 20 tokens, from the 10 most likely
    branch at t if clip(u − w · dH, 0, 1) ≤ p,  u uniform in [0, 1]           so the probability is p + w · dH, clipped

The advantage is GRPO's over all attempts of the group. Turns that several attempts share: *soft* trains every copy with the advantage of
its attempt, *hard* trains them once, with the mean of the advantages of all attempts that share them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.authors import kl_loss
from turnwise.methods.registry import Brings, method, plan
from turnwise.methods.surprise import NEEDS, Beam, First, Initial, Measured, Over, Probability, Surprise, Tree, Weight

PAPER = "Dong et al. 2025, ARPO, arXiv 2507.19849"


@plan("arpo", paper=PAPER, needs=NEEDS)
class Arpo(Surprise):
    """Some attempts from the start, then branches after observations at which the policy's entropy rose."""

    def __init__(
        self,
        *,
        initial: Initial = None,
        beam: Beam = 2,
        weight: Weight = 0.2,
        probability: Probability = 0.5,
        first: First = 20,
        over: Over = "sum",
        measured: Measured = "answer",
    ):
        super().__init__(initial, beam, weight, probability, first, over, measured)

    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        return arpo_branches(u, rise, self.weight, self.probability)


def arpo_branches(u: float, rise: float, weight: float, probability: float) -> bool:
    """The rule of the public code."""
    return min(max(u - weight * rise, 0.0), 1.0) <= probability


@method(
    "arpo",
    paper=PAPER,
    changes="collection, credit",
    costs="no extra rollouts; shared turns are generated once; the engine reports 10 log-probs per token",
    evidence="code (rollout); notes (hard and soft)",
)
def arpo(
    *,
    attribution: Annotated[
        Literal["soft", "hard"], Help("shared turns: every copy with its own advantage, or once with the mean advantage")
    ] = "soft",
) -> dict[str, Any]:
    """Attempts branch after surprising observations, and GRPO compares all of them."""
    hard = attribution == "hard"
    own = {"plan.name": "arpo", "credit.name": "arpo" if hard else "grpo", "collect.shared_prefix": "once" if hard else "each"}
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.0, "credit.norm": "std"}
    return Brings(own, authors | kl_loss(0.0))
