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


def unpack(weight: Any, out: Tensor) -> None:
    """Write a packed weight as plain numbers into `out`, on a GPU without a copy in between."""
    state = weight.quant_state
    if out.is_cuda and out.dtype == state.dtype:
        library().functional.dequantize_4bit(weight.data, state, out=out)
    else:
        out.copy_(dense(weight))


def times(x: Tensor, weight: Any) -> Tensor:
    """The rows of x times a packed weight, as the library does it best: for few rows without unpacking, where it has such a kernel."""
    product: Tensor = library().matmul_4bit(x, weight.data.t(), quant_state=weight.quant_state)
    return product


def unread(weight: Any) -> str | None:
    """Why the codes of a packed weight cannot be read here; None if they can."""
    rearranged = getattr(weight.quant_state, "packing_format_for_cpu", False)
    return "its 4-bit codes are arranged for a CPU's own kernel" if rearranged else None
