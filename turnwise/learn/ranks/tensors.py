"""Whole tensors from sharded ones, and back. Plain tensors pass unchanged, so callers need not know whether weights are sharded."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    """Whether this process holds only a share of the tensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """The whole tensor. If it is sharded, all processes call this together."""
    found: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return found


def placed_like(value: Tensor, own: Any) -> Tensor:
    """A value that every process has as a whole, cut as `own` is cut; unchanged if `own` is not sharded. Nothing is exchanged."""
    if not is_sharded(own) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    found: Tensor = distribute_tensor(value.detach().to(own.device), own.device_mesh, own.placements, src_data_rank=None)
    return found


def put(own: Tensor, value: Tensor) -> None:
    """Copy a value, whole or cut in the same way, into a tensor."""
    own.data.copy_(placed_like(value, own))


def held(tensor: Any) -> int:
    """The number of elements that this process holds."""
    return int((tensor.to_local() if is_sharded(tensor) else tensor).numel())
