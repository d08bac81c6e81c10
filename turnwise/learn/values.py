"""The critic: values of states for credit that needs them, and the targets that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnwise.credit.gae import gae_advantages
from turnwise.learn.packing import Packed
from turnwise.learn.settings import ValueSettings
from turnwise.objectives.value import value_loss
from turnwise.rollouts import Floats, Rollouts, ragged


class Critic(nn.Module):  # type: ignore[misc]
    """One linear layer on the policy's hidden states, float32. It starts at zero: before it has learnt, every state is worth 0."""

    def __init__(self, size: int, settings: ValueSettings):
        super().__init__()
        self.settings = settings
        self.layer = nn.Linear(size, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, hidden: Tensor, packed: Packed) -> Tensor:
        """One value a turn or a response token of `packed`, by the level."""
        places = packed.turn_source if self.settings.level == "turn" else packed.source
        states = hidden[torch.as_tensor(places, device=hidden.device)].float()
        values: Tensor = self.layer(states if self.settings.trains_model else states.detach())[:, 0]
        return values

    def columns(self, packed: Packed) -> dict[str, Any]:
        """Where `old_value` and `value_target` of a batch are kept: one entry a turn or one a response token."""
        return dict(packed.turn_columns if self.settings.level == "turn" else packed.columns)

    def loss(self, values: Tensor, packed: Packed, batch_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of this part of the batch in the mean value loss, times the coefficient, and its metrics."""
        columns = self.columns(packed)
        old, target = (torch.as_tensor(columns[name], dtype=torch.float32, device=values.device) for name in ("old_value", "value_target"))
        weight = torch.full_like(values.detach(), 1 / batch_size)
        loss, metrics = value_loss(values, old, target, weight, self.settings.clip, batch_size)
        return self.settings.coef * loss, metrics


def gae_targets(rollouts: Rollouts, *, level: str = "turn", gamma: float = 1.0, lam: float = 0.95, invalid_penalty: float = 0.0) -> Floats:
    """What the critic should have said: GAE's advantages plus its values, one number a turn or a token, in the rollouts' row order.

    Give it the settings of the credit function, and rollouts that carry the critic's values (`Learner.annotate`).
    """
    ordered = rollouts.in_order()
    advantage = gae_advantages(ordered, level=level, gamma=gamma, lam=lam, invalid_penalty=invalid_penalty)
    targets: Floats = advantage + ordered.need("value" if level == "turn" else "token_value", "a value target")
    if rollouts.is_in_order:
        return targets
    place = ragged(ordered.token_offsets, rollouts.positions) if level == "token" else rollouts.positions
    return targets[place]


def with_value_targets(packed: Packed, rollouts: Rollouts, targets: Any, settings: ValueSettings) -> Packed:
    """`packed` with the columns that the critic's loss needs."""
    why = "training the critic (Learner.annotate adds it)"
    if settings.level == "turn":
        old, goal = rollouts.need("value", why), np.asarray(targets, np.float64)
        return packed.with_turn_columns(old_value=old[packed.turn_row], value_target=goal[packed.turn_row])
    old = rollouts.need("token_value", why)
    return packed.with_columns(old_value=old[packed.index], value_target=np.asarray(targets, np.float64)[packed.index])
