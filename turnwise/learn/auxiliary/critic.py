"""PPO's critic (`learner.value` in a recipe): an auxiliary model of one head, which reads the policy's hidden states.

It is scored and saved as any auxiliary model (`models["value"].outputs(batch)`, `model_value.safetensors` in a checkpoint). What sets it
apart: it is trained in the policy's own backward pass, because its loss may move the policy's weights too. So the learner computes its
values along with the log-probs, adds its loss to the policy's, clips both gradients by their common norm, and lets both optimisers step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from turnwise.learn.auxiliary.model import AuxiliaryModel, Training
from turnwise.learn.auxiliary.scorer import ReadAt
from turnwise.learn.device import to_device
from turnwise.learn.forward import PackedModel
from turnwise.learn.memory import Budget
from turnwise.learn.packing import Packed
from turnwise.learn.ranks.group import Decisions, Ranks
from turnwise.learn.sections import ValueSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.objectives.value import value_loss

NAME = "value"  # of the model, and of its head


class ValueHead:
    """The kind of this model: one linear head, float32, which starts at zero, so that every state has value 0 before training."""

    logprobs = False

    def __init__(self, settings: ValueSettings):
        self.settings = settings

    def heads(self) -> dict[str, ReadAt]:
        """One value per turn, at its last prompt token, or one per response token, at the token before it."""
        return {NAME: self.settings.level}

    def weighted(self, packed: Packed) -> Packed:
        """A mini-batch with the weight of every value in the critic's mean loss: 0 for those that a mask leaves out. Returns above 1 count
        in units of their mean square: otherwise a reward of 10 would pull the policy's weights a hundred times as hard as one of 1."""
        turns = self.settings.level == "turn"
        columns = packed.turn_columns if turns else packed.columns
        in_loss = columns["in_loss"]
        square = float(np.square(columns["value_target"], dtype=np.float64).sum(where=in_loss))
        weight = np.where(in_loss, 1 / max(int(in_loss.sum()), square, 1), 0.0).astype(np.float32)
        return packed.with_turn_columns(value_weight=weight) if turns else packed.with_columns(value_weight=weight)

    def part_loss(self, values: Tensor, part: Packed, batch_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of a micro-batch in the mean value loss, times the coefficient, and its metrics. `values` has one entry per turn or per
        response token, as the columns that it is compared with; `batch_size` of them count in the mini-batch."""
        columns = part.turn_columns if self.settings.level == "turn" else part.columns
        names = ("old_value", "value_target", "value_weight")
        old, target, weight = (to_device(columns[name], values.device, torch.float32) for name in names)
        loss, metrics = value_loss(values, old, target, weight, self.settings.clip, batch_size)
        return self.settings.coef * loss, metrics


class Critic(AuxiliaryModel):
    """`kind` is a `ValueHead`."""

    kind: ValueHead

    def values(self, states_TH: Tensor, part: Packed) -> Tensor:
        """One value per turn or per response token of a part, from the hidden states of all its tokens."""
        return self.heads_on(states_TH, part)[NAME]


def build_critic(policy: PackedModel, settings: LearnerSettings, ranks: Ranks | None, decisions: Decisions, budget: Budget) -> Critic:
    """The critic of a learner: its optimiser has the learner's settings and a learning rate of its own."""
    value, optimiser = settings.value, settings.optimiser
    assert value is not None
    return Critic(
        NAME,
        policy,
        None,
        kind=ValueHead(value),
        training=Training(optimiser.model_copy(update={"lr": value.lr})),
        temperature=settings.temperature,
        shares=True,
        ranks=ranks,
        decisions=decisions,
        budget=budget,
    )
