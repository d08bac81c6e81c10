"""The critic's loss: squared error of value and return, clipped around the old value as in PPO.

There is one entry per predicted value: per token, or per turn for critics that value turns. `weight` comes from `token_weights` of the
whole batch, so parts add up here as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from turnwise.util.errors import TurnwiseError


def value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    weight: Tensor,
    eps_v: float | None = 0.5,
    batch_size: int | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the weighted squared error, the larger of clipped and unclipped; `eps_v` None does not clip.

    `batch_size` is the number of entries with a weight in the whole batch; needed if this is only a part of it.
    """
    if not value.shape == old_value.shape == target.shape == weight.shape:
        raise TurnwiseError("value loss: value, old_value, target and weight must have equal shapes")
    if eps_v is not None and not eps_v > 0:
        raise TurnwiseError(f"value loss: eps_v must be a positive number or none, not {eps_v!r}")
    real, kept = torch.promote_types(value.dtype, torch.float32), weight != 0
    new, old, goal = (torch.where(kept, x.to(real), 0.0) for x in (value, old_value.detach(), target.detach()))
    error = (new - goal).square()
    clipped = torch.zeros_like(kept)
    if eps_v is not None:
        bounded = (new.clamp(old - eps_v, old + eps_v) - goal).square()
        clipped = bounded > error
        error = torch.maximum(error, bounded)
    loss = (weight.detach().to(real) * error).sum() / 2
    count = kept.sum() if batch_size is None else torch.as_tensor(batch_size, device=value.device)

    def mean(x: Tensor) -> Tensor:  # in 64 bits: variances are differences of these large numbers
        return torch.where(kept, x.detach().double(), 0.0).sum() / count.clamp(min=1)

    residual = goal - new
    metrics = {
        "value_loss": loss.detach(),
        "value_clip": mean(clipped),
        "value": mean(new),
        "value_target": mean(goal),
        "value_target_squared": mean(goal.double().square()),
        "value_residual": mean(residual),
        "value_residual_squared": mean(residual.double().square()),
    }
    return loss, metrics


def explained_variance(metrics: Mapping[str, float]) -> float:
    """1 − Var(target − value) / Var(target), from the summed metrics of all parts; 0 if the targets vary by no more than their own
    rounding (they are 32-bit numbers: about 1e-7 of their magnitude)."""
    square = float(metrics["value_target_squared"])
    spread = square - float(metrics["value_target"]) ** 2
    rest = float(metrics["value_residual_squared"]) - float(metrics["value_residual"]) ** 2
    return 1 - max(rest, 0.0) / spread if spread > 1e-12 * square else 0.0
