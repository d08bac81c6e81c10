"""Weights in 4 bits, as bitsandbytes stores them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from turnwise.util.errors import MissingExtra


def library() -> Any:
    """bitsandbytes, or an error that says how to get it."""
    try:
        return import_module("bitsandbytes")
    except ImportError:
        raise MissingExtra("a base in 4 bits (model.lora.base)", "4bit") from None


def is_packed(module: Any) -> bool:
    """Whether a linear layer's weight is stored in 4 bits."""
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def dense(weight: Any) -> Tensor:
    """A layer's weight as plain numbers; one that is not packed passes unchanged."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        plain: Tensor = weight
        return plain
    found: Tensor = library().functional.dequantize_4bit(weight.data, state)
    return found
