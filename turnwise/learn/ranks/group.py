"""The processes of one learner, and how they talk.

    ranks = join(rank, size, "127.0.0.1:29500", device="cuda")      # in every process
    learner = Learner(model, settings, ranks=ranks)

Every process makes the same calls in the same order with the same arguments. Numbers and small objects travel over gloo on the CPU;
weights and gradients travel over NCCL if the model is on a GPU. No wait is longer than the timeout of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from turnwise.learn.ranks.waits import waits
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")
TIMEOUT = 600.0  # seconds that a process waits for the others


@dataclass(frozen=True)
class Ranks:
    """One process among `size` of them. `group` is their process group; None: the default one. `device` is where the model computes.
    `shards`: whether weights are sharded; None: if there are several processes."""

    rank: int
    size: int
    group: Any = None
    device: str = "cpu"
    shards: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise TurnwiseError(f"ranks are numbered from 0 to size - 1, not rank={self.rank} of size={self.size}")

    @property
    def sharded(self) -> bool:
        """Whether the learner's work is split at all. A single process keeps the plain path, which is bitwise the same as without ranks."""
        return self.size > 1 if self.shards is None else self.shards

    @cached_property
    def mesh(self) -> Any:
        """All processes in one row, on the device of the model."""
        from torch.distributed.device_mesh import DeviceMesh

        return DeviceMesh.from_group(self.group or dist.group.WORLD, torch.device(self.device).type)

    @property
    def together(self) -> Together:
        """Decisions that all processes take together."""
        return Together(self)

    def gather(self, own: T) -> list[T]:
        """What every process has, in the order of their ranks."""
        found: list[Any] = [None] * self.size
        with waits.exchange():
            dist.all_gather_object(found, own, group=self.group)
        return found

    def sum_(self, tensors: list[torch.Tensor]) -> None:
        """Replace plain tensors by their sums over all processes, which are bitwise the same everywhere."""
        for tensor in tensors:
            with waits.exchange(tensor):
                dist.all_reduce(tensor, group=self.group)

    def barrier(self) -> None:
        """Wait for all."""
        self.together.any(False)

    def reduced(self, number: float, how: Any) -> float:
        """One number from those of all processes."""
        tensor = torch.tensor(float(number), dtype=torch.float64)
        with waits.exchange():
            dist.all_reduce(tensor, how, group=self.group)
        return float(tensor.item())


@dataclass(frozen=True)
class Together:
    """The `Decide` protocol over a process group."""

    ranks: Ranks

    def any(self, flag: bool) -> bool:
        return self.ranks.reduced(flag, dist.ReduceOp.MAX) > 0

    def smallest(self, number: float) -> float:
        return self.ranks.reduced(number, dist.ReduceOp.MIN)

    def total(self, number: float) -> float:
        return self.ranks.reduced(number, dist.ReduceOp.SUM)


def join(rank: int, size: int, address: str, *, device: str = "cpu", timeout: float = TIMEOUT, shards: bool | None = None) -> Ranks:
    """Meet the other processes at `address`: host:port of rank 0, or file:///… on a shared disk."""
    where = address if "://" in address else f"tcp://{address}"
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise TurnwiseError(
            f"rank {rank} of {size} did not meet the others at {where} within {timeout:g} s ({str(error)[:200]}). "
            "Can this machine reach that address, and is the port free?"
        ) from error
    return Ranks(rank, size, device=device, shards=shards)


def leave() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
