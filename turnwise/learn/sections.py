"""`[model]`, `[models.NAME]`, `[learner]` and `[sft]`: the models of a run and how they learn. No torch.

The parts take these classes as their settings. `OptimiserSettings` and `LearnerSettings` (`settings.py`) add what no recipe says.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import Field, model_validator

from turnwise.config.section import Options, Section

RESERVED = ("policy", "reference")  # every run has these models
SOURCES = ("path", "tiny", "copy_of", "reads")


class Lora(Section):
    """Low-rank adapters instead of full training."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the adapters' output is multiplied by alpha / rank."""
    targets: list[str] | None = None
    """Names of the linear layers; none: all of attention and MLP, in a mixture of experts those of attention."""
    base: Literal["full", "4bit"] = "full"
    """How the frozen weights of the linear layers are stored: as model.dtype says, or in 4 bits (NF4, with bitsandbytes), which engine and
    learner both compute with."""


class TinySizes(Section):
    """A small transformer, newly made with the policy's tokenizer and random weights."""

    layers: int = Field(4, ge=1)
    """Layers."""
    hidden: int = Field(128, ge=8)
    """Width."""
    heads: int = Field(4, ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _even(self) -> TinySizes:
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise ValueError(f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads}), e.g. hidden={self.heads * 32}")
        return self


class Tiny(TinySizes):
    """A small transformer with its own word tokenizer, trained from scratch."""

    max_length: int = Field(1024, ge=16)
    """Maximum sequence length. Unless given, more if the longest prompt and response need it."""
    vocabulary_tasks: int = Field(400, ge=1)
    """Number of training tasks that are played to collect the vocabulary."""
    names: bool = False
    """One token for a name such as get_stock_info, instead of one for each of its words: for actions that are calls."""


class Model(Section):
    """The model that is trained."""

    path: str | None = None
    """A Hugging Face model folder (or a hub name, if a hub is reachable); none: the tiny model."""
    tiny: Tiny = Tiny()
    """The tiny model, used if `path` is none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation; the optimiser's weights are always float32."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""


class ValueSettings(Section):
    """A critic: one linear layer in float32 on the policy's last hidden states. Its loss also moves the policy."""

    level: Literal["turn", "token"] = "turn"
    """One value per turn (before the response) or per token."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate of the head."""
    coef: float = Field(0.5, ge=0)
    """Weight of the value loss relative to the policy loss; returns above 1 count in units of their mean square."""
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
    optimiser_place: Literal["device", "host"] = "device"
    """Where the moments and the float32 master weights are: on the model's device, or in host memory, from which each step brings them in
    chunks. Affects memory use and speed only, never the result."""

    @model_validator(mode="after")
    def _converges(self) -> Optimiser:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers in [0, 1), not {self.betas}")
        return self


class OptimiserSettings(Optimiser):
    """AdamW as an optimiser takes it. `lr` may be 0: weights then stay as they are. `eps` is added to the root of the second moment."""

    lr: float = Field(1e-6, ge=0)
    eps: float = Field(1e-8, gt=0)

    def factor(self, step: int, progress: float) -> float:
        """The factor of the learning rate at this step (from 0) with this share of the run done (0 to 1)."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = min(max(progress, 0.0), 1.0)
        return warm * {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]


class Update(Section):
    """The shape of an update: how one iteration's data is turned into optimiser steps."""

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
    """With a KL reference that is a copy of the model: where its weights are. On the model's device; in host memory, from which they come
    while it scores; or (auto) in host memory if a GPU would have too little left. Affects memory use and speed only, never the result."""
    old_logprobs: Literal["learner", "engine", "auto"] | None = None
    """The old log-probs of the ratio: recomputed by the learner, reported by the engine, or (auto) the engine's if they are close
    enough to the learner's. None: auto on a GPU in 16 bits if the loss has no other use for the engine's; otherwise learner."""
    kl_stop: float | None = Field(None, gt=0)
    """Stop an iteration's update when the KL from the old policy exceeds this; none: never."""
    value: ValueSettings | None = None
    """A critic, for credit that needs values: `turnwise algos NAME` says what an algorithm needs."""


class Learner(Update, Optimiser):
    """The optimiser and the shape of an update."""


class SftSettings(Section):
    """A supervised warm start from expert trajectories."""

    required: bool = True
    """Whether an environment without an expert is an error. If not, a tiny model learns the listed actions from random play; a
    pretrained model needs no warm start."""
    file: str | None = None
    """Instead of the expert: trajectories written by `turnwise trajectories` (.jsonl or .parquet). Successful ones are played again in
    the environment, so that this agent builds their prompts; thoughts are learned together with the actions."""
    tasks: int = Field(256, ge=1)
    """Number of training tasks that the expert plays; with a file, the maximum number of its trajectories."""
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


class Adapters(Section):
    """Low-rank adapters of an auxiliary model, on all linear layers of attention and MLP."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters; their output is multiplied by 32 / rank."""


class AuxiliarySettings(Section):
    """A model next to the policy: a teacher, a reward model, a process reward model, a critic. You choose NAME. Exactly one of path,
    tiny, copy_of and reads says where its weights come from. A trained one has AdamW with a constant learning rate."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum gradient norm; none: no clipping."""
    path: str | None = None
    """A Hugging Face model folder, or what `turnwise export --model` wrote."""
    tiny: TinySizes | None = None
    """A small model with random weights."""
    copy_of: Literal["policy"] | None = None
    """Start from the policy's weights before the first iteration, after a warm start."""
    reads: Literal["policy"] | None = None
    """Only heads, no other weights: they read the policy's hidden states, without moving the policy."""
    trained: bool = False
    """Whether it is trained; a frozen model never changes by itself."""
    kind: str = "causal"
    """Its heads and how it learns: causal, heads, reward, or your own class (path/to/file.py:Class, package.module:Class)."""
    options: Options = Field({})
    """Options of the kind."""
    texts: bool = False
    """Let it read only texts, with its own tokenizer: for a model whose tokens are not the policy's."""
    device: str | None = Field(None, pattern=r"^(cpu|cuda(:\d+)?)$")
    """Its device (cpu, cuda, cuda:1); none: the policy's device."""
    lora: Adapters | None = None
    """Train adapters instead of all weights."""
    epochs: int = Field(1, ge=1)
    """Passes over a batch in each update."""

    @model_validator(mode="after")
    def _consistent(self) -> AuxiliarySettings:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"say where its weights come from with exactly one of {', '.join(SOURCES)}; given: {found}")
        if self.lora is not None and (not self.trained or self.reads):
            raise ValueError("lora goes with trained = true and separate weights")
        if self.texts and (self.path is None or self.trained):
            raise ValueError("texts = true is for a frozen model with its own tokenizer (path)")
        if self.reads and self.device:
            raise ValueError('reads = "policy" has heads on the policy\'s device: leave out device')
        if self.reads and not self.trained and self.kind == "causal":
            raise ValueError('reads = "policy" needs a kind with heads, which are trained or follow those of another model')
        return self


def check_model_names(names: Any) -> None:
    """Raises an error for a name that a recipe cannot give to an auxiliary model."""
    for name in names:
        if name in RESERVED:
            raise ValueError(f"[models.{name}]: every run has this model already; give yours another name")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"[models.{name}]: a model's name is made of small letters, digits and _, and starts with a letter")
