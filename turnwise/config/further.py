"""`[models.NAME]`: further models next to the policy."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from turnwise.config.checks import check
from turnwise.config.learning import Optimiser
from turnwise.config.section import Options, Section
from turnwise.config.sections import Lora

RESERVED = ("policy", "reference")  # every run has these
SOURCES = ("path", "tiny", "copy_of", "reads")


class TinySizes(Section):
    """A small transformer, newly made with the policy's tokenizer and random weights."""

    layers: int = Field(4, ge=1)
    """Layers."""
    hidden: int = Field(128, ge=8)
    """Width."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    max_length: int = Field(1024, ge=16)
    """Longest sequence."""


class FurtherModel(Optimiser):
    """A model next to the policy: a teacher, a reward model, a process reward model, a critic. You choose NAME. Exactly one of path,
    tiny, copy_of and reads says where its weights come from."""

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
    dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the computation; none: bfloat16 for a frozen model on a GPU, otherwise model.dtype."""
    device: str | None = Field(None, pattern=r"^(cpu|cuda(:\d+)?)$")
    """Its device (cpu, cuda, cuda:1); none: the policy's device."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""
    epochs: int = Field(1, ge=1)
    """Passes over a batch in each update."""
    minibatches: int = Field(1, ge=1)
    """Optimiser steps per pass; each sees whole groups."""
    tokens_per_batch: int = Field(0, ge=0)
    """Tokens computed at once; affects memory use only, never the result. 0: what a GPU's memory allows, 8,192 on a CPU."""

    @model_validator(mode="after")
    def _consistent(self) -> FurtherModel:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"say where its weights come from with exactly one of {', '.join(SOURCES)}; given: {found}")
        if self.lora is not None and (not self.trained or self.reads):
            raise ValueError("lora goes with trained = true and separate weights")
        if self.lora is not None and self.lora.base != "full":
            raise ValueError("lora.base = 4bit is for the policy (model.lora): a further model keeps its base as it is")
        if self.texts and (self.path is None or self.trained):
            raise ValueError("texts = true is for a frozen model with its own tokenizer (path)")
        if self.reads and (self.dtype or self.device):
            raise ValueError('reads = "policy" has heads on the policy\'s device, in its dtype: leave out dtype and device')
        if self.reads and not self.trained and self.kind == "causal":
            raise ValueError('reads = "policy" needs a kind with heads, which are trained or follow those of another model')
        check("models", self)
        return self


def check_model_names(names: Any) -> None:
    """Raises an error for a name that a recipe cannot give to a further model."""
    for name in names:
        if name in RESERVED:
            raise ValueError(f"[models.{name}]: every run has this model already; give yours another name")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"[models.{name}]: a model's name is made of small letters, digits and _, and starts with a letter")
