"""IPA: the unit of credit and of importance is the interaction, one turn.

Credit of a turn is what follows it, shared by all of its tokens:

    G_k = r_k + γ · G_{k+1}          with a reward only at the end: γ^(turns to the end) · R

No baseline is subtracted. `neutral` is taken from the last reward, so that a failure with a return of 0 has a negative G.

The objective imitates the positive part as it is, and unlearns the negative part as far as the policy still does it (TOPR):

    positive trajectory   −G · log π
    negative trajectory   −min(ρ, 1) · G · log π        ρ = exp( mean over the turn's tokens of log π − log π_old ), no gradient

G is the credit of the turn. A trajectory is positive if its return is above `above`. Turns on which engine and learner disagree are left
out by the importance correction `reject`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, last_turns, reverse_scan
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.registry import Brings, RecipeDiscount, method, section
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "IPA (ROME), arXiv 2512.24873"
Neutral = Annotated[float, Help("the return that teaches nothing; it is subtracted at the end")]
NO_IMITATION = "what the expert played is not learned from; a warm start ([sft]) imitates it"
NO_STARTS = "attempts start at the beginning; plan.name=tcod_b2f starts them in the expert's trajectory"


@credit.register("ipa", paper="IPA, arXiv 2512.24873")
def ipa_credit(r: Rollouts, *, gamma: TurnDiscount = 0.95, neutral: Neutral = 0.0) -> Floats:
    """The discounted return from each turn on, minus a constant at the end; no baseline."""
    return reverse_scan(r.reward - neutral * last_turns(r), gamma, r.trajectory)


@objectives.register("ipa", paper="IPA, arXiv 2512.24873; TOPR", needs=("trajectory.return",), former={"imitation": (0.0, NO_IMITATION)})
def ipa_loss(
    tokens: Tokens,
    *,
    above: Annotated[float, Help("a trajectory is positive if its return is above this")] = 0.0,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """Credit times log-prob; in trajectories that are not positive, weighted by the turn's ratio, at most 1."""
    import torch

    from turnwise.objectives.tokens import ratio_of

    positive = tokens.extra["return"] > above
    ratio = ratio_of(tokens.mean_over(level, tokens.log_ratio.detach()))
    weight = torch.where(positive, 1.0, ratio.clamp(max=1.0))
    loss = -weight * tokens.advantage * tokens.logprob
    return TokenLoss(loss, {"positive": positive, "span_ratio": ratio, "topr_weight": weight})


@method(
    "ipa",
    paper=PAPER,
    changes="credit, objective",
    costs="one pass for old log-probs",
    evidence="paper and code; discount, threshold and neutral return are ours",
    former={"imitation": (0.0, NO_IMITATION), "starts": ("beginning", NO_STARTS), "success": (0.5, NO_STARTS)},
)
def ipa(
    *,
    gamma: RecipeDiscount = None,
    neutral: Neutral = 0.0,
    mismatch: Annotated[float, Help("turns whose geometric ratio of learner to engine is above this are left out", low=0)] = 1.05,
) -> dict[str, Any]:
    """Return, importance ratio and mismatch mask per turn; successes are imitated, failures unlearned with bounded weight."""
    return Brings(
        section("credit", name="ipa", gamma=gamma, neutral=neutral)
        | section("objective", name="ipa", above=neutral, importance="reject", importance_options={"over": "turn", "ratio_high": mismatch})
        | {"learner.old_logprobs": "learner"}
    )
