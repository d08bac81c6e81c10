"""Runs with random weights of a real model's shape: made in seconds, without a download."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.learn.models import choose_device
from turnwise.learn.shapes import ModelShape
from turnwise.learn.tiny import build_tiny_for
from turnwise.setup.system import System

TINY = ModelShape("tiny", 64, 128, 2, 4, 2, 4000, 16, tied=True)


def random_model(shape: ModelShape, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """A model of this shape in a second. On a CPU all layers begin with the same numbers, in the same memory, and get their own when they
    move to the GPU. Trained weights are float32, as a folder is loaded; frozen ones are made in the dtype that they will have."""
    config = Qwen2Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.words,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)  # its buffers are computed
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    for name, parameter in list(model.named_parameters()):
        key = tuple(parameter.shape), name.endswith("bias")
        if key not in made or shape.name == TINY.name or device != "cpu":  # these stay where they are
            made[key] = numbers(*key, dtype, device)
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, nn.Parameter(made[key]))
    model.tie_weights()
    return model.eval()


def numbers(size: tuple[int, ...], bias: bool, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A matrix of random numbers (on a CPU a block of them, again and again), the ones of a norm or the zeros of a bias."""
    if len(size) == 1:
        return torch.full(size, 0.0 if bias else 1.0, dtype=dtype, device=device)
    if device != "cpu":
        return torch.empty(size, dtype=dtype, device=device).normal_(0.0, 0.02)
    block = (0.02 * torch.randn(2**20, generator=torch.Generator().manual_seed(0))).to(dtype)
    count = size[0] * size[1]
    return block.repeat(-(-count // len(block)))[:count].view(size)


class RandomSystem(System):
    """The parts of a run with random weights of a shape, and a tokenizer of the environment's words."""

    shape: ModelShape = TINY

    def _load(self) -> tuple[Any, Any]:
        """Weights that will be packed in 4 bits are in host memory, from which they are packed layer by layer; others are made in place."""
        lora = self.config.model.lora
        dtype = torch.float32 if lora is None else getattr(torch, self.config.model.dtype)
        packed = lora is not None and lora.base == "4bit"
        return random_model(self.shape, dtype, "cpu" if packed else choose_device(self.config.device)), self.vocabulary

    @cached_property
    def vocabulary(self) -> Any:
        """The tokenizer."""
        own, sample = self.config.env, 4 if self.shape.name == TINY.name else 40
        return build_tiny_for(own.name, options=dict(own.options), sample=sample, layers=1, hidden=16, heads=1, limits=self.limits)[1]
