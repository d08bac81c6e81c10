"""IPA's objective: the positive part is imitated as it is, the negative part only as far as the policy still does it (TOPR).

    positive trajectory   −G · log π
    negative trajectory   −min(ρ, 1) · G · log π        ρ = exp( mean over the turn's tokens of log π − log π_old ), no gradient
    a given turn          −imitation · G · π            one that an expert has played (column turn.given), if `imitation` is above 0

G is the credit of the turn. A trajectory is positive if its return is above `above`. Turns on which engine and learner disagree are left
out by the importance correction `reject`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch

from turnwise.config.options import Help
from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens, ratio_of

Imitation = Annotated[float, Help("weight of the imitation of turns that an expert has played; 0: they are not learned from", low=0)]


@register("ipa", paper="IPA, arXiv 2512.24873; TOPR", needs=("trajectory.return",))
def ipa(
    tokens: Tokens,
    *,
    above: Annotated[float, Help("a trajectory is positive if its return is above this")] = 0.0,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
    imitation: Imitation = 0.0,
) -> TokenLoss:
    """Credit times log-prob; in trajectories that are not positive, weighted by the turn's ratio, at most 1."""
    positive = tokens.extra["return"] > above
    ratio = ratio_of(tokens.mean_over(level, tokens.log_ratio.detach()))
    weight = torch.where(positive, 1.0, ratio.clamp(max=1.0))
    loss, metrics = -weight * tokens.advantage * tokens.logprob, {"positive": positive, "span_ratio": ratio, "topr_weight": weight}
    if imitation > 0:
        given = tokens.extra["given"] > 0
        loss = torch.where(given, -imitation * tokens.advantage * tokens.logprob.exp(), loss)
        metrics["given"] = given
    return TokenLoss(loss, metrics)


def needs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The column that says which turns were given, if they are learned from."""
    return ("turn.given",) if options["imitation"] else ()


ipa.needs_of = needs_of  # type: ignore[attr-defined]
