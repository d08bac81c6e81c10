"""Where gradients are added up in float32, while the weights that they belong to compute in half precision.

A backward pass that knows a weight's home adds to it directly, and the matrix product that gives the gradient does the addition: nothing
is rounded to half precision, and no further pass reads the sum. Gradients that come another way are added by a hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


class Home:
    """The place of one weight's gradient: on its master, or in a table by name, if the master is in host memory."""

    def __init__(self, master: Tensor, table: dict[str, Tensor] | None = None, name: str = ""):
        self._master, self._table, self._name = master, table, name

    @property
    def sum(self) -> Tensor | None:
        """What has been added up so far."""
        return self._master.grad if self._table is None else self._table.get(self._name)

    def put(self, gradient: Tensor) -> None:
        """Replace the sum."""
        if self._table is None:
            self._master.grad = gradient
        else:
            self._table[self._name] = gradient

    def gather(self, weight: Tensor) -> None:
        """A hook: add the gradient that autograd left on the weight, and take it from there."""
        if weight.grad is not None:
            self.add(weight.grad)
            weight.grad = None

    def add(self, gradient: Tensor) -> None:
        """Add a gradient in any precision. One in float32 may be kept as it is."""
        known = self.sum
        if known is None:
            self.put(gradient.float())
        else:
            known.add_(gradient)


def settle(weight: Any, home: Home) -> None:
    """Give a weight a home."""
    weight.home = home
    weight.register_post_accumulate_grad_hook(home.gather)


def home_of(weight: Any) -> Home | None:
    """The home of a weight, if it has one."""
    return getattr(weight, "home", None)


def homes_of(weights: Sequence[Any]) -> list[Home | None]:
    """The homes of weights that have one."""
    return [home_of(weight) for weight in weights]


def reserve(weights: Sequence[Any]) -> None:
    """Give the gradients of weights that follow one another a place before anything is added up: zeros, in one piece. Nothing happens if
    one of them has no home, or a sum already."""
    homes = [home for home in homes_of(weights) if home is not None and home.sum is None]
    if len(homes) < len(weights):
        return
    rows = [len(weight) for weight in weights]
    whole = torch.zeros(sum(rows), *weights[0].shape[1:], dtype=torch.float32, device=weights[0].device)
    for home, part in zip(homes, whole.split(rows), strict=True):
        home.put(part)


def add_product(homes: Sequence[Home], sizes: Sequence[int], left: Tensor, right: Tensor) -> None:
    """Add leftᵀ · right to the sums of weights that follow one another in it, with so many rows each."""
    known = joined([home.sum for home in homes])
    if known is None:
        share(homes, sizes, _product(left.t(), right))
    elif left.is_cuda and left.dtype in HALF and adds_in_place(left.dtype):
        torch.addmm(known, left.t(), right, out_dtype=known.dtype, out=known)
    else:
        known.add_(left.t() @ right)


def weight_slopes(
    left: Tensor, right: Tensor, sizes: Sequence[int], wanted: Sequence[bool], homes: Sequence[Home | None]
) -> list[Tensor | None]:
    """leftᵀ · right as gradients of weights with so many rows each. Those that have a home are added there, and None stands for them."""
    known = [home for home in homes if home is not None]
    if any(wanted) and (len(known) < len(homes) or not all(wanted)):
        return list((left.t() @ right).split(list(sizes)))
    if any(wanted):
        add_product(known, sizes, left, right)
    return [None] * len(sizes)


def share(homes: Sequence[Home], sizes: Sequence[int], gradient: Tensor) -> None:
    """Add a joined gradient to the sums of the weights that it belongs to, with so many rows each."""
    for home, part in zip(homes, gradient.split(list(sizes)), strict=True):
        home.add(part)


def joined(sums: Sequence[Tensor | None]) -> Tensor | None:
    """The tensor that these sums are all parts of, one after another; None if there is none."""
    first = sums[0]
    if first is None or len(sums) == 1:
        return first
    whole, end = first._base, first.data_ptr()
    if whole is None or whole.data_ptr() != end or not whole.is_contiguous():
        return None
    for own in sums:
        if own is None or own._base is not whole or own.data_ptr() != end or not own.is_contiguous():
            return None
        end += own.numel() * own.element_size()
    return whole if end == whole.data_ptr() + whole.numel() * whole.element_size() else None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left · right in float32; a GPU does not round it before."""
    if left.is_cuda and left.dtype in HALF:
        product: Tensor = torch.mm(left, right, out_dtype=torch.float32)
        return product
    return (left @ right).float()


@lru_cache
def adds_in_place(dtype: torch.dtype) -> bool:
    """Whether torch adds a product of this dtype to a float32 matrix on this GPU."""
    ones = torch.ones(16, 16, dtype=dtype, device="cuda")
    known = torch.full((16, 16), 0.5, device="cuda")
    try:
        torch.addmm(known, ones.t(), ones, out_dtype=torch.float32, out=known)
    except (RuntimeError, TypeError):  # an older torch wants one dtype
        return False
    return bool((known == 16.5).all())
