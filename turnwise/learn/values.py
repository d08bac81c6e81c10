"""The critic: values of states for credit that needs them, and the targets that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from turnwise.config.options import Entry
from turnwise.credit.gae import gae_advantages, token_rows
from turnwise.credit.registry import Credit, CreditFunction
from turnwise.credit.segments import PER_TURN, discounted_returns
from turnwise.data.rollouts import Floats, Rollouts, ragged
from turnwise.learn.packing import Packed
from turnwise.learn.sending import sent
from turnwise.learn.settings import ValueSettings
from turnwise.objectives.value import value_loss
from turnwise.util.errors import TurnwiseError


class Critic(nn.Module):  # type: ignore[misc]
    """One linear layer on the policy's hidden states, float32. It starts at zero: before training, every state has value 0."""

    def __init__(self, size: int, settings: ValueSettings):
        super().__init__()
        self.settings = settings
        self.layer = nn.Linear(size, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, hidden: Tensor, packed: Packed) -> Tensor:
        """One value per turn or per response token of `packed`, depending on the level."""
        places = packed.turn_source if self.settings.level == "turn" else packed.source
        states = hidden[sent(places, hidden.device)].float()
        values: Tensor = self.layer(states if self.settings.trains_model else states.detach())[:, 0].clone()
        return values

    def columns(self, packed: Packed) -> dict[str, Any]:
        """Where `old_value`, `value_target` and `value_weight` of a batch are kept: one entry per turn or per response token."""
        return dict(packed.turn_columns if self.settings.level == "turn" else packed.columns)

    def weighted(self, packed: Packed) -> Packed:
        """A mini-batch with the weight of every value in the critic's mean loss: 0 for those that a mask leaves out."""
        turns = self.settings.level == "turn"
        kept = (packed.turn_columns if turns else packed.columns)["kept"]
        weight = np.where(kept, 1 / max(int(kept.sum()), 1), 0.0).astype(np.float32)
        return packed.with_turn_columns(value_weight=weight) if turns else packed.with_columns(value_weight=weight)

    def loss(self, values: Tensor, packed: Packed, batch_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of this part of the batch in the mean value loss, times the coefficient, and its metrics."""
        columns, names = self.columns(packed), ("old_value", "value_target", "value_weight")
        old, target, weight = (sent(columns[name], values.device, torch.float32) for name in names)
        loss, metrics = value_loss(values, old, target, weight, self.settings.clip, batch_size)
        return self.settings.coef * loss, metrics


def gae_targets(rollouts: Rollouts, *, level: str = "turn", gamma: float = 1.0, lam: float = 0.95, invalid_penalty: float = 0.0) -> Floats:
    """The critic's targets under plain GAE: its advantages plus the values, one number per turn or token, in the rollouts' row order.
    `credit.assign(…).targets` are the targets of any algorithm that uses a critic; these are those of `gae` with these settings.
    """
    ordered = rollouts.in_order()
    advantage = gae_advantages(ordered, level=level, gamma=gamma, lam=lam, invalid_penalty=invalid_penalty)
    targets: Floats = advantage + ordered.need("value" if level == "turn" else "token_value", "a value target")
    if rollouts.is_in_order:
        return targets
    place = ragged(ordered.token_offsets, rollouts.positions) if level == "token" else rollouts.positions
    return targets[place]


def targets_of(
    credit: Credit, rollouts: Rollouts, entry: Entry[CreditFunction], options: dict[str, Any], level: Literal["turn", "token"]
) -> Floats:
    """What a critic of this level should learn: the credit function's own targets. With an algorithm that uses no critic it learns the
    return from a turn on, at the algorithm's discount per turn (if it has one) and the same on all tokens of the turn."""
    if credit.targets is not None:
        if credit.level != level:
            raise TurnwiseError(
                f"credit algorithm {entry.name!r} has targets per {credit.level}, and the critic has values per {level}: "
                f'set learner.value.level="{credit.level}"'
            )
        return credit.targets
    discount = entry.options.get("gamma")
    gamma = float(options["gamma"]) if discount is not None and discount.help is PER_TURN else 1.0
    ordered = rollouts.in_order()
    charged = replace(ordered, reward=ordered.reward - float(options.get("invalid_penalty", 0.0)) * ~ordered.valid)
    to_go = discounted_returns(charged, gamma)[rollouts.positions]
    return to_go[token_rows(rollouts)] if level == "token" else to_go
