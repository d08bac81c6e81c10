"""The settings of a learner. They are checked when they are made, so that a wrong number fails before a model loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from turnwise.methods.registry import schedules
from turnwise.objectives.kl import CAP
from turnwise.objectives.loss import Loss
from turnwise.objectives.tokens import AGGREGATIONS
from turnwise.util.errors import TurnwiseError, unknown_name

Decay = Literal["constant", "linear", "cosine"]
PASSES = ("epochs", "minibatches", "minibatch_size", "minibatch_unit")  # settings that a step schedule may have as options
Dtype = Literal["float32", "bfloat16"]
Moments = Literal["float32", "8bit"]
Place = Literal["device", "host"]
OldLogprobs = Literal["learner", "engine", "auto"]
ReferencePlace = Literal["device", "host", "auto"]


@dataclass(frozen=True)
class OptimiserSettings:
    """AdamW.

    lr, schedule, warmup  the learning rate rises from 0 in `warmup` steps, then stays, or falls with the run's progress towards `final_lr`
    weight_decay          not on norms and biases (weights with fewer than two axes)
    clip                  largest norm of the whole gradient; None does not clip
    moments               how AdamW's moments are stored: float32 (8 bytes per weight), or 8 bits with a scale per block (2.06 bytes)
    optimiser_place       where moments and float32 master weights are: on the model's device, or in host memory
    max_bad_steps         after this many steps in a row with a loss or gradient that is not finite, training stops with an error
    """

    lr: float = 1e-6
    schedule: Decay = "constant"
    warmup: int = 0
    final_lr: float = 0.0
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = 1.0
    max_bad_steps: int = 3
    moments: Moments = "float32"
    optimiser_place: Place = "device"

    def __post_init__(self) -> None:
        _choice(self, "schedule", get_args(Decay))
        _choice(self, "moments", get_args(Moments))
        _choice(self, "optimiser_place", get_args(Place))
        _numbers(self, at_least={"lr": 0, "warmup": 0, "final_lr": 0, "weight_decay": 0, "max_bad_steps": 1}, above={"eps": 0, "clip": 0})
        if not all(0 <= beta < 1 for beta in self.betas):
            raise TurnwiseError(f"learner: betas are two numbers in [0, 1), not {self.betas!r}")

    def factor(self, step: int, progress: float) -> float:
        """The factor of the learning rate at this step (from 0) with this share of the run done (0 to 1)."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = min(max(progress, 0.0), 1.0)
        falls = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        floor = self.final_lr / self.lr if self.lr else 0.0
        return warm * (falls if self.schedule == "constant" else floor + (1 - floor) * falls)


@dataclass(frozen=True)
class ValueSettings:
    """A critic: one linear layer on the policy's last hidden states, float32.

    level         one value per turn (at its last prompt token), or one per response token (at the token before it)
    lr, coef      learning rate of this layer, weight of its loss relative to the policy's
    clip          how far a value may move in one update, as PPO bounds it; None: no bound
    trains_model  whether the value loss also moves the model, or only this layer
    """

    level: Literal["turn", "token"] = "turn"
    lr: float = 1e-3
    coef: float = 0.5
    clip: float | None = None
    trains_model: bool = True

    def __post_init__(self) -> None:
        _choice(self, "level", ("turn", "token"))
        _numbers(self, at_least={"lr": 0, "coef": 0}, above={"clip": 0})


@dataclass(frozen=True)
class LearnerSettings:
    """How one iteration's data is turned into optimiser steps.

    loss                         objective, KL term, entropy bonus, importance correction
    aggregation, constant        what counts the same in the loss (`token_weights`), and the divisor of the sums
    optimiser                    AdamW and its learning-rate schedule
    schedule, schedule_options   which parts of a batch make up which optimiser step: a registered name, and its options
    epochs                       passes over the data
    minibatches, minibatch_size  optimiser steps per pass; or, if the size is given, about that many units per step
    minibatch_unit               what a mini-batch is made of: whole trajectories, or turns
    tokens_per_batch             tokens that are computed at once: affects memory use only, never the result; 0: what a GPU's memory
                                 allows, 8,192 on a CPU
    dtype                        of the computation; the optimiser's copy of the weights is always float32
    gradient_checkpointing       save memory by computing activations twice; None: if a GPU's memory requires it, never on a CPU
    skip_zero_credit             leave sequences out whose credit is exactly 0, if nothing else needs them; None: on a GPU
    reference_place              where the reference's copy of the weights is: on the model's device, in host memory, from which its layers
                                 come one after another when it scores, or "auto": in host memory if a GPU would have too little left
    temperature                  the sampler's; log-probs are at this temperature
    old_logprobs, engine_gap     whose log-probs are the old ones of the ratio: the learner's before the first step, the engine's, or
                                 "auto": the engine's if their mean distance from the learner's on a sample is at most `engine_gap`, and
                                 the root of its mean square at most twice that; None: see `old_logprobs_on`
    kl_reward_coef, kl_reward    subtract coefficient × KL to the reference from each turn's reward, and the estimator (k1, k2, k3)
    kl_reward_cap                a bound on each token's k3 in it; None: no bound
    kl_stop                      end an update when the KL from the old policy exceeds this
    value                        a critic, for credit that needs values
    """

    loss: Loss = field(default_factory=Loss)
    aggregation: str = "turn"
    constant: float | None = None
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    schedule: str = "shuffled"
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 1
    minibatches: int = 1
    minibatch_size: int | None = None
    minibatch_unit: Literal["trajectory", "turn"] = "trajectory"
    tokens_per_batch: int = 0
    dtype: Dtype = "float32"
    gradient_checkpointing: bool | None = None
    skip_zero_credit: bool | None = None
    reference_place: ReferencePlace = "device"
    temperature: float = 1.0
    old_logprobs: OldLogprobs | None = None
    engine_gap: float = 0.03
    kl_reward_coef: float = 0.0
    kl_reward: str = "k1"
    kl_reward_cap: float | None = CAP
    kl_stop: float | None = None
    value: ValueSettings | None = None

    def __post_init__(self) -> None:
        _choice(self, "aggregation", AGGREGATIONS)
        _choice(self, "minibatch_unit", ("trajectory", "turn"))
        _choice(self, "dtype", get_args(Dtype))
        if self.old_logprobs is not None:
            _choice(self, "old_logprobs", get_args(OldLogprobs))
        _choice(self, "reference_place", get_args(ReferencePlace))
        _choice(self, "kl_reward", ("k1", "k2", "k3"))
        counts = {"epochs": 1, "minibatches": 1, "minibatch_size": 1, "tokens_per_batch": 0}
        positive: dict[str, float] = {"temperature": 0, "kl_stop": 0, "constant": 0, "kl_reward_cap": 0}
        _numbers(self, at_least={**counts, "kl_reward_coef": 0, "engine_gap": 0}, above=positive)
        if self.constant is not None and not self.aggregation.endswith("_sum"):
            raise TurnwiseError(f"learner: constant goes with turn_sum or trajectory_sum, not with aggregation {self.aggregation!r}")
        self._check_schedule()
        if self.loss.level == "trajectory" and self.minibatch_unit == "turn":
            raise TurnwiseError(
                "learner: this loss averages over whole trajectories, which mini-batches of turns cut: use minibatch_unit='trajectory'"
            )

    def old_logprobs_on(self, device: str) -> OldLogprobs:
        """Whose log-probs are the old ones of the ratio, on a device of this type. Left open, it is "auto" where passes in 16 bits differ
        anyway, that is, on a GPU. Left open or "auto", it is the learner's if the loss compares the engine's log-probs with them."""
        compared = "engine_logprob" in self.loss.needs or "token.logprob" in self.loss.reads
        if self.old_logprobs == "auto" and compared:
            return "learner"
        if self.old_logprobs is not None:
            return self.old_logprobs
        return "auto" if device == "cuda" and self.dtype != "float32" and not compared else "learner"

    def check_sharded(self, packed: bool = False) -> None:
        """Raises an error for settings that only one process can have. `packed`: the base of its adapters is stored in 4 bits."""
        if packed:
            raise TurnwiseError("model.lora.base = '4bit' is for a learner of one process: set cluster.learners = 1, or base = 'full'")
        asked: dict[str, str] = {"reference_place": self.reference_place} if self.reference_place == "host" else {}
        asked |= {"moments": self.optimiser.moments} if self.optimiser.moments != "float32" else {}
        asked |= {"optimiser_place": self.optimiser.optimiser_place} if self.optimiser.optimiser_place != "device" else {}
        for name, value in asked.items():
            raise TurnwiseError(
                f"learner.{name} = {value!r} is for a learner of one process. Several share this memory among them: leave "
                f"learner.{name} out, or set cluster.learners = 1"
            )

    def _check_schedule(self) -> None:
        entry = schedules[self.schedule]
        defaults = type(self).__dataclass_fields__
        unread = [name for name in PASSES if name not in entry.options and getattr(self, name) != defaults[name].default]
        if unread:
            raise TurnwiseError(f"learner: {unread[0]} is set, and schedule {self.schedule!r} has no such option: leave it out")
        entry.bind(self._schedule_options, schedules.kind)

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


def _choice(owner: Any, name: str, known: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    if value not in known:
        raise unknown_name(f"learner setting {name}", str(value), known)


def _numbers(owner: Any, at_least: dict[str, float], above: dict[str, float]) -> None:
    """None is allowed if it is the default."""
    defaults = type(owner).__dataclass_fields__
    for word, bounds in (("≥", at_least), (">", above)):
        for name, bound in bounds.items():
            value = getattr(owner, name)
            if value is None and "None" in str(defaults[name].type):
                continue
            whole = str(defaults[name].type).startswith("int")
            right = isinstance(value, int) if whole else isinstance(value, (int, float)) and math.isfinite(value)
            if isinstance(value, bool) or not right or value < bound or (word == ">" and value == bound):
                raise TurnwiseError(f"learner: {name} is {'an integer' if whole else 'a number'} {word} {bound:g}, not {value!r}")
