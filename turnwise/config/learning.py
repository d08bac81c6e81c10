"""The sections of a recipe about learning: plan, signals, credit, objective, schedule, learner and warm start.

Every field is typed, and documented where it is defined and nowhere else. Sections that name a component take its options; `checks.py` asks
the registries whether a name is valid.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from turnwise.config.checks import check
from turnwise.config.section import Named, Options, Section

CREDIT = "gigpo"  # the algorithm of a recipe that names none


class Credit(Named):
    """Credit assignment. Further keys are the algorithm's options: see `turnwise algos NAME`."""

    name: str = CREDIT
    """A credit algorithm that `turnwise algos` lists, or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Credit:
        check("credit", self)
        return self


class Objective(Named):
    """The loss. Further keys are the objective's options: see `turnwise algos NAME`."""

    name: str = "clip"
    """An objective that `turnwise algos` lists, package.module:function or path/to/file.py:function."""
    aggregation: Literal["token", "turn", "trajectory", "trajectory_turn", "turn_sum", "trajectory_sum"] = "turn"
    """What has equal weight in the loss: every token, turn or trajectory; or plain sums divided by `constant`."""
    constant: float | None = Field(None, gt=0)
    """With turn_sum and trajectory_sum: the divisor."""
    kl: Literal["off", "loss", "reward"] = "off"
    """KL to the frozen reference: off, a term of the loss, or subtracted from the reward."""
    kl_coef: float = Field(0.01, ge=0)
    """Its coefficient."""
    kl_kind: Literal["k1", "k2", "k3", "k3+"] | None = None
    """Its estimator; none: k3 in the loss, k1 in the reward."""
    entropy_coef: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus."""
    importance: str = "none"
    """Correction for the difference between the engine's and the learner's log-probs: none or a name from docs/objectives.md."""
    importance_options: Options = {}
    """Options of the correction."""

    @model_validator(mode="after")
    def _known(self) -> Objective:
        check("objective", self)
        return self


class Schedule(Named):
    """Which parts of a batch make up which optimiser step. Further keys are the schedule's options: see `turnwise algos NAME`."""

    name: str = "shuffled"
    """A schedule that `turnwise algos` lists, package.module:function or path/to/file.py:function. The default shuffles trajectories or
    turns into mini-batches as [learner] says."""

    @model_validator(mode="after")
    def _known(self) -> Schedule:
        if self.name != type(self).model_fields["name"].default or self.options:
            check("schedule", self)
        return self


class Method(Named):
    """A method: settings that belong together, under one name. Further keys are its options: see `turnwise algos NAME`. What the recipe and
    the command line say themselves wins over the method; the method wins over defaults and over what `extends` brings."""

    name: str
    """A method that `turnwise algos method` lists, package.module:function or path/to/file.py:function."""
    faithful: bool = False
    """Also take the values of shared settings (aggregation, KL, clip, discount …) that the method's authors took. By default the recipe's
    hold, so that methods which are compared differ in nothing else."""
    authors: dict[str, Any] = {}
    """Those values, in the record of a run. A recipe need not set it."""

    @model_validator(mode="after")
    def _known(self) -> Method:
        check("method", self)
        return self


class Plan(Named):
    """Which attempts are made next. Further keys are the plan's options: see `turnwise algos NAME`."""

    name: str
    """A plan that `turnwise algos` lists, package.module:Class or path/to/file.py:Class. Without this section, collect.strategy decides."""

    @model_validator(mode="after")
    def _known(self) -> Plan:
        check("plan", self)
        return self


class Source(Named):
    """A source of batches of one's own, in front of the run's. Further keys are its options."""

    name: str
    """package.module:Class or path/to/file.py:Class, derived from turnwise.collect.source.OwnSource. Without this section, batches are
    collected in this process, or on the recipe's cluster."""

    @model_validator(mode="after")
    def _known(self) -> Source:
        check("source", self)
        return self


class Signal(Named):
    """A function that adds columns to every batch before credit. Further keys are its options: see `turnwise algos NAME`."""

    name: str
    """A signal that `turnwise algos` lists, package.module:function or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Signal:
        check("signal", self)
        return self


class Value(Section):
    """A critic: a small head on the policy's hidden states."""

    level: Literal["turn", "token"] = "turn"
    """One value per turn (before the response) or per token."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate of the head."""
    coef: float = Field(0.5, ge=0)
    """Weight of the value loss relative to the policy loss."""
    clip: float | None = Field(None, gt=0)
    """Bound on how far a value may move in one iteration; none: no bound."""


class Optimiser(Section):
    """AdamW and its learning rate."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning-rate schedule after the warm-up; linear and cosine end at 0."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay, not on norms and biases."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum gradient norm; none: no clipping."""
    moments: Literal["float32", "8bit"] = "float32"
    """How AdamW's moments are stored: in float32 (8 bytes per weight) or in 8 bits with a scale per block (about 2 bytes)."""
    optimiser_place: Literal["device", "host"] = "device"
    """Where the moments and the float32 master weights are: on the model's device, or in host memory, from which each step brings them in
    chunks. Affects memory use and speed only, never the result."""


class Learner(Optimiser):
    """The optimiser and the shape of an update."""

    epochs: int = Field(1, ge=1)
    """Passes over an iteration's data."""
    minibatches: int = Field(1, ge=1)
    """Optimiser steps per pass."""
    minibatch_size: int | None = Field(None, ge=1)
    """Instead: about this many units (see minibatch_unit) per optimiser step."""
    minibatch_unit: Literal["trajectory", "turn"] = "trajectory"
    """The unit of a mini-batch: whole trajectories, or turns."""
    tokens_per_batch: int = Field(0, ge=0)
    """Tokens computed at once; affects memory use only, never the result. 0: what a GPU's memory allows, 8,192 on a CPU."""
    gradient_checkpointing: bool | None = None
    """Save memory by recomputing activations; none: if a GPU's memory requires it, never on a CPU."""
    skip_zero_credit: bool | None = None
    """Skip turns whose credit is exactly 0, if nothing else needs them; none: on a GPU."""
    reference_place: Literal["device", "host", "auto"] = "device"
    """With a KL reference that is a copy of the model: where its weights are. On the model's device; in host memory, from which its layers
    come one after another when it scores; or (auto) in host memory if a GPU would have too little left. Affects memory use and speed
    only, never the result."""
    old_logprobs: Literal["learner", "engine", "auto"] | None = None
    """The old log-probs of the ratio: recomputed by the learner, reported by the engine, or (auto) the engine's if they are close
    enough to the learner's. None: auto on a GPU in 16 bits if the loss has no other use for the engine's; otherwise learner."""
    engine_gap: float = Field(0.03, ge=0)
    """With old_logprobs = auto: the maximum mean distance between the engine's and the learner's log-probs. The root of the mean
    square may be twice that."""
    kl_stop: float | None = Field(None, gt=0)
    """Stop an iteration's update when the KL from the old policy exceeds this; none: never."""
    value: Value | None = None
    """A critic, for credit that needs values: `turnwise algos NAME` says what an algorithm needs."""


class Sft(Section):
    """A supervised warm start from expert trajectories."""

    required: bool = True
    """Whether an environment without an expert is an error. If not, a tiny model learns the listed actions from random play; a
    pretrained model needs no warm start."""
    file: str | None = None
    """Instead of the expert: trajectories written by `turnwise trajectories` (.jsonl or .parquet). Successful ones are played again in
    the environment, so that this agent builds their prompts; thoughts are learned together with the actions."""
    tasks: int = Field(256, ge=1)
    """Number of training tasks that the expert plays; with a file, the maximum number of its trajectories."""
    tries: int = Field(32, ge=1)
    """With random play instead of an expert: attempts per task, of which the best is learned from."""
    noise: float = Field(0.0, ge=0, lt=1)
    """Share of turns that are played at random instead of by the expert."""
    imitate: Literal["expert", "all"] = "expert"
    """With noise: learn only from the expert's turns, or from all. With all, the model imitates a clumsy player: it follows the format,
    tries everything and plays badly, which is a good starting point for reinforcement learning."""
    epochs: int = Field(3, ge=1)
    """Passes over the expert's turns."""
    steps: int | None = Field(None, ge=1)
    """Instead: this many optimiser steps."""
    until: float | None = Field(None, gt=0, le=1)
    """Stop early once this share of `look_tasks` training tasks is won, with one attempt each as in training. The rest is left to
    reinforcement learning, whatever the seed. None: do not measure."""
    at_least: float | None = Field(None, gt=0, le=1)
    """Measure after the last step, and continue while less than this share of `look_tasks` training tasks is won: half as many steps
    again, at most four times. None: do not measure."""
    look_every: int = Field(10, ge=1)
    """With until: optimiser steps between two measurements."""
    look_tasks: int = Field(48, ge=1)
    """With until and at_least: number of tasks per measurement."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate."""
    prompt_weight: float = Field(0.0, ge=0)
    """Weight of the prompt tokens in the loss: useful for a model that starts from scratch; a pretrained one needs 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning-rate schedule after the warm-up."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    batch_tokens: int = Field(8192, ge=16)
    """Tokens per optimiser step."""
