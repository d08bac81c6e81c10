"""The settings of a learner. They are checked when they are made, so that a wrong number fails before a model loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field, InstanceOf, model_validator

from turnwise.learn.sections import OptimiserSettings, Update
from turnwise.methods.registry import schedules
from turnwise.objectives.loss import Loss
from turnwise.objectives.tokens import AGGREGATIONS
from turnwise.util.errors import TurnwiseError, unknown_name

PASSES = ("epochs", "minibatches", "minibatch_size", "minibatch_unit")  # settings that a step schedule may have as options
OldLogprobs = Literal["learner", "engine", "auto"]


class LearnerSettings(Update):
    """How one iteration's data is turned into optimiser steps: the fields of `[learner]` that shape an update, and what other sections of a
    recipe say about it.

    loss                        objective, KL term, entropy bonus, importance correction
    aggregation, constant       what counts the same in the loss (`token_weights`), and the divisor of the sums
    optimiser                   AdamW and its learning-rate schedule
    schedule, schedule_options  which parts of a batch make up which optimiser step: a registered name, and its options
    dtype                       of the computation; the optimiser's copy of the weights is always float32
    temperature                 the sampler's; log-probs are at this temperature
    kl_reward_coef, kl_reward   subtract coefficient × KL to the reference from each turn's reward, and the estimator
    """

    loss: InstanceOf[Loss] = Field(default_factory=Loss)
    aggregation: str = "turn"
    constant: float | None = Field(None, gt=0)
    optimiser: OptimiserSettings = OptimiserSettings()
    schedule: str = "shuffled"
    schedule_options: Mapping[str, Any] = {}
    dtype: Literal["float32", "bfloat16"] = "float32"
    temperature: float = Field(1.0, gt=0)
    kl_reward_coef: float = Field(0.0, ge=0)
    kl_reward: Literal["k1", "k2", "k3"] = "k1"

    @model_validator(mode="after")
    def _consistent(self) -> LearnerSettings:
        if self.aggregation not in AGGREGATIONS:
            raise unknown_name("learner setting aggregation", self.aggregation, AGGREGATIONS)
        if self.constant is not None and not self.aggregation.endswith("_sum"):
            raise TurnwiseError(f"learner: constant goes with turn_sum or trajectory_sum, not with aggregation {self.aggregation!r}")
        if self.loss.level == "trajectory" and self.minibatch_unit == "turn":
            raise TurnwiseError(
                "learner: this loss averages over whole trajectories, which mini-batches of turns cut: use minibatch_unit='trajectory'"
            )
        entry, defaults = schedules[self.schedule], type(self).model_fields
        unread = [name for name in PASSES if name not in entry.options and getattr(self, name) != defaults[name].default]
        if unread:
            raise TurnwiseError(f"learner: {unread[0]} is set, and schedule {self.schedule!r} has no such option: leave it out")
        entry.bind(self._schedule_options, schedules.kind)
        return self

    def old_logprobs_on(self, device: str) -> OldLogprobs:
        """Whose log-probs are the old ones of the ratio, on a device of this type. Left open, it is "auto" where passes in 16 bits differ
        anyway, that is, on a GPU. Left open or "auto", it is the learner's if the loss compares the engine's log-probs with them."""
        compared = "engine_logprob" in self.loss.needs or "token.logprob" in self.loss.reads
        if self.old_logprobs == "auto" and compared:
            return "learner"
        if self.old_logprobs is not None:
            return self.old_logprobs
        return "auto" if device == "cuda" and self.dtype != "float32" and not compared else "learner"

    @property
    def _schedule_options(self) -> dict[str, Any]:
        """The options of the step schedule; with epochs and mini-batches if it has options of these names."""
        own = {name: getattr(self, name) for name in PASSES if name in schedules[self.schedule].options}
        return own | dict(self.schedule_options)

    def made_schedule(self) -> Callable[..., Any]:
        """The schedule itself, to be called with a view of a batch: a function with its options, or a new object of its class."""
        return schedules[self.schedule].make(self._schedule_options, schedules.kind)

    @property
    def whole_trajectories(self) -> bool:
        """Whether the loss averages over whole trajectories, so that a micro-batch must not cut them."""
        return self.loss.level == "trajectory"

    @property
    def values_turns(self) -> bool:
        """Whether there is a critic that values turns: then a turn without tokens also counts."""
        return self.value is not None and self.value.level == "turn"

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the frozen reference are used anywhere."""
        return self.loss.kl_coef > 0 or self.kl_reward_coef > 0 or "token.ref_logprob" in self.loss.reads
