"""The entropy of the distribution that each token was drawn from: a bonus that prevents a policy from converging too early.

The learner provides the column, because only the learner sees the logits; `from_logits` is the formula for learners that have them all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.objectives.tokens import Tokens


def from_logits(logits: Tensor) -> Tensor:
    """Entropy over the last axis, in nats; −inf logits (forbidden tokens) count as probability 0, value and gradient."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprob = logits.log_softmax(-1)
    possible = logprob > -torch.inf
    # exp(masked) × masked would be 0 × inf, backward as well as forward, so the log is replaced before it is used
    finite = torch.where(possible, logprob, 0.0)
    return -torch.where(possible, finite.exp() * finite, 0.0).sum(-1)


def bonus(tokens: Tokens) -> Tensor:
    """The entropy per token, with gradient; the loss subtracts its coefficient times this."""
    return tokens.need("entropy", "an entropy bonus")
