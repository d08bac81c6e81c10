"""AEPO: ARPO's trees with a balanced budget, plus an objective and an advantage that keep tokens of high entropy alive.

    pilot    one attempt per task that is only measured: H_root = entropy of its first turn, H_tool = mean entropy of its turns
    initial  m = clip(floor(k · sigmoid(β · (H_root − H_tool))) + 1, 1, k) attempts from the start, k = collect.group_size
    branch   if clip((u + w · dH) · max(0, 1 − penalty · c), 0, 1) ≥ p,  c = rounds in a row in which this group has branched

The entropies are ARPO's.

The advantage is GRPO's, larger on tokens that were drawn from wide distributions:

    A(token) = A(τ) · (1 + a · z),   z = (H − mean H) / std H        H: the token's entropy, as the engine reported it

Mean and standard deviation are over all tokens of the batch that are learned from. Where all entropies are equal, z is 0.

The clip of the objective lets a token above the upper bound keep a gradient, of the size that it has at the bound:

    upper bound = (1 + ε_high) · ρ / sg(ρ)        its value is 1 + ε_high, its gradient that of (1 + ε_high) · log π

PPO drops the gradient of tokens whose probability has grown beyond the bound. Many of them are tokens of high entropy, at which the policy
explores. The lower bound and the dual clip are PPO's.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import Norm, Penalty, Weighting
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Rollouts, Trajectory, alike
from turnwise.methods.arpo import NEEDS, Beam, First, Initial, Measured, Over, Probability, Surprise, Tree, Weight
from turnwise.methods.authors import kl_loss
from turnwise.methods.planning import Places
from turnwise.methods.registry import Brings, method, plan
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

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
        played = {trajectory.group: trajectory for trajectory in (yield pilots)}
        for tree in trees:
            seen = played.get(tree.spare[0].group)
            entropies = [0.0] if seen is None else [self.entropy(turn, places.vocabulary) for turn in seen.turns]
            tree.initial = aepo_initial(tree.budget, entropies, self.beta)
        return {"pilots": float(len(played)), "initial": sum(tree.initial for tree in trees) / len(trees)}


def aepo_initial(budget: int, entropies: Sequence[float], beta: float) -> int:
    """How many attempts of a group start from the beginning, by the entropies of the pilot's turns."""
    gap = beta * (entropies[0] - sum(entropies) / len(entropies))
    return max(1, min(budget, math.floor(budget * (0.5 + 0.5 * math.tanh(gap / 2))) + 1))


def aepo_branches(u: float, rise: float, streak: int, weight: float, probability: float, penalty: float) -> bool:
    """The rule of the public code."""
    return min(max((u + weight * rise) * max(0.0, 1.0 - penalty * streak), 0.0), 1.0) >= probability


@credit.register("aepo", paper="Dong et al. 2025, AEPO, arXiv 2510.14545", needs=("token.entropy", "group.peers"))
def aepo_credit(
    r: Rollouts,
    *,
    strength: Annotated[float, Help("how much an entropy one standard deviation above the mean adds to the advantage", low=0)] = 0.2,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """GRPO's credit per token, scaled by the token's entropy relative to the batch."""
    of_turns = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    of_token = np.repeat(np.arange(len(r)), np.diff(r.token_offsets))
    counts = np.ones(len(of_token), np.bool_) if not r.has("turn.mask") else r.column("turn.mask")[of_token]
    counts = counts & r.column("token.mask") if r.has("token.mask") else counts
    return {"token.advantage": of_turns[of_token] * (1 + strength * deviations(r.column("token.entropy"), counts))}


def deviations(values: Any, counts: Any) -> Floats:
    """Values minus their mean, in sample standard deviations; the statistics are of those that count. 0 if these are all equal."""
    exact = np.asarray(values, np.float64)
    known = exact[counts]
    if len(known) < 2 or alike(known):
        return np.zeros(len(exact))
    result: Floats = (exact - known.mean()) / known.std(ddof=1)
    return result


@objectives.register("aepo", paper="Dong et al. 2025, AEPO, arXiv 2510.14545")
def aepo_loss(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is bounded above at 1 + this, and keeps its gradient", low=0)] = 0.2,
    dual_clip: Annotated[float | None, Help("bound on the ratio if the advantage is negative", low=1)] = None,
) -> TokenLoss:
    """PPO's clipped ratio whose upper bound stops the value and not the gradient."""
    import torch

    advantage, ratio = tokens.advantage, tokens.ratio
    above = ratio > 1 + clip_high
    bounded = torch.where(above, (1 + clip_high) / ratio.detach() * ratio, ratio.clamp(min=1 - clip_low))
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    metrics = {"clip_low": (advantage < 0) & (ratio < 1 - clip_low), "clip_high": (advantage > 0) & above}
    if dual_clip is not None:
        worst = (advantage < 0) & (ratio > dual_clip)
        loss = torch.where(worst, -advantage * dual_clip, loss)
        metrics["clip_dual"] = worst
    return TokenLoss(loss, metrics)


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
