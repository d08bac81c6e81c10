"""LoRA adapters inside the fused layers: what they add to a product, and their gradients.

A product y = x · Wᵀ with adapters adds scale · (x · Aᵀ) · Bᵀ to the outputs of each layer that has one. The base weight W gets no gradient,
and nothing is kept for the adapters' own: x · Aᵀ has as many columns as the adapters have ranks, so it is computed again. The factors are
float32 parameters; they are cast to what the layers compute in, as the native engine casts them, whenever they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from turnwise.engines.native.weights import Linear
from turnwise.learn.weights import product


@dataclass(frozen=True, slots=True)
class Factor:
    """One adapter: A, B, the scale, and the outputs of the joined product that it adds to."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    scale: float
    rows: slice


def factors_of(product: Any) -> list[Factor]:
    """The adapters that are active now on the layers of a joined product."""
    found, start = [], 0
    if isinstance(product, Linear) and product.adapted:
        for size, adapters in zip(product.sizes, product.adapters(), strict=True):
            found += [Factor(down, up, scale, slice(start, start + size)) for down, up, scale in adapters]
            start += size
    return found


def parameters(*products: Any) -> list[Tensor]:
    """The factors of several products as arguments of a function: A and B of each adapter."""
    return [weight for product in products for factor in factors_of(product) for weight in (factor.down, factor.up)]


def multiply(x: Tensor, product: Any, factors: Sequence[Factor]) -> Tensor:
    """The product with its bias and what the adapters add."""
    out = linear(x, product.weight, getattr(product, "bias", None))
    if factors:
        inner = linear(x, _downs(factors, x.dtype)).split([len(factor.down) for factor in factors], 1)
        for factor, own in zip(factors, inner, strict=True):
            out[:, factor.rows].addmm_(own, factor.up.to(x.dtype).t(), alpha=factor.scale)
    return out


def input_gradient(grad: Tensor, product: Any, factors: Sequence[Factor]) -> tuple[Tensor, Tensor | None]:
    """The gradient of a product's input, and that of what lies between the adapters' factors, [rows, ranks]."""
    out = grad @ product.weight
    if not factors:
        return out, None
    inner = torch.cat([(grad[:, factor.rows] @ factor.up.to(grad.dtype)) * factor.scale for factor in factors], 1)
    return out.addmm_(inner, _downs(factors, grad.dtype)), inner


def factor_gradients(grad: Tensor, x: Tensor, inner_grad: Tensor | None, factors: Sequence[Factor]) -> list[Tensor]:
    """The gradients of A and B of each adapter, if the product's output has gradient `grad` and its input was x."""
    if inner_grad is None:
        return []
    ranks = [len(factor.down) for factor in factors]
    inner = linear(x, _downs(factors, x.dtype)).split(ranks, 1)
    downs = product(inner_grad.t(), x).to(factors[0].down.dtype).split(ranks)
    found = []
    for factor, own, down in zip(factors, inner, downs, strict=True):
        found += [down, product(grad[:, factor.rows].t(), own).to(factor.up.dtype).mul_(factor.scale)]
    return found


def _downs(factors: Sequence[Factor], dtype: torch.dtype) -> Tensor:
    """A of all adapters, one below the other."""
    return torch.cat([factor.down for factor in factors]).to(dtype)
