"""Estimates of KL(policy ‖ reference) from sampled tokens: as a term of the loss, and as a penalty inside the reward.

With d = log reference − log policy of a token that the policy sampled:

    k1   −d                 unbiased, noisy; as a loss its expected gradient is zero: use it in rewards only
    k2   d²/2               biased value, and exactly the gradient of the KL on policy
    k3   exp(d) − d − 1     unbiased, never negative; its gradient is that of the reverse direction
    k3+                     the value of k3 with the gradient of k2: usually the right choice for logging and for the loss

All four assume that the policy itself sampled the tokens. k3 grows as exp(d): a token that is 10,000 times likelier under the reference
counts as much as ten thousand others. k3 is therefore capped, in the loss and in the reward, at 10 by default, as in verl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.objectives.tokens import MAX_LOG_RATIO
from turnwise.util.errors import TurnwiseError, unknown_name


def _k2(d: Tensor) -> Tensor:
    return d.square() / 2


def _k3(d: Tensor) -> Tensor:
    # expm1 keeps the estimate exact if policy and reference almost agree; exp(d) − 1 would lose all digits.
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return d.expm1() - d


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": torch.neg, "k2": _k2, "k3": _k3}
KINDS = (*ESTIMATORS, "k3+")
CAP = 10.0  # the largest k3 of a token


def estimate(logprob: Tensor, ref_logprob: Tensor, kind: str = "k3", cap: float | None = None) -> Tensor:
    """The estimate per token. `cap` bounds k3 and k3+, whose exponential can dominate a batch; beyond it, k3+ has a gradient and k3 has
    none."""
    if kind not in KINDS:
        raise unknown_name("KL estimator", kind, KINDS)
    d = ref_logprob - logprob
    value = ESTIMATORS[kind.removesuffix("+")](d)
    if cap is not None and kind in ("k3", "k3+"):
        value = value.clamp(max=cap)
    if kind != "k3+":
        return value
    slope = _k2(d)  # for any d: the bound on the value must not remove the gradient that brings a distant policy back
    return value.detach() + (slope - slope.detach())


def reward_penalty(
    logprob: Any,
    ref_logprob: Any,
    coef: float,
    kind: str = "k1",
    turn: Any = None,
    turns: int | None = None,
    cap: float | None = CAP,
) -> Any:
    """The penalty to add to rewards: −coef × estimate, per token; with `turn` ids (0, 1, 2 …), summed to one number per turn. `cap` bounds
    k3.

    numpy in, numpy out; torch in, torch out. Never carries a gradient.
    """
    if kind == "k3+":
        raise TurnwiseError("KL in the reward has no gradient, and k3+ differs from k3 in its gradient only: use k3")
    plain = not isinstance(logprob, Tensor)
    new, ref = (torch.as_tensor(x).detach() for x in (logprob, ref_logprob))
    real = torch.promote_types(torch.promote_types(new.dtype, ref.dtype), torch.float32)
    penalty = -coef * estimate(new.to(real), ref.to(real), kind, cap)
    if turn is not None:
        ids = torch.as_tensor(turn, device=penalty.device)
        size = turns if turns is not None else (int(ids.max()) + 1 if len(ids) else 0)
        penalty = penalty.new_zeros(size).index_add(0, ids, penalty)
    return np.asarray(penalty) if plain else penalty
