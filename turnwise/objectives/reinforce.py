"""Plain policy gradient: no ratio, no bound. Right when every batch is used for one update; the yardstick for the others."""

from __future__ import annotations

from turnwise.objectives.registry import TokenLoss, register
from turnwise.objectives.tokens import Tokens


@register("reinforce", paper="Williams 1992; as GPG, arXiv 2504.02546")
def reinforce(tokens: Tokens) -> TokenLoss:
    """Advantage times log-probability, nothing else; for data that the current policy has just sampled."""
    return TokenLoss(-tokens.advantage * tokens.logprob, {})
