"""The processes of one learner, and how they talk.

    ranks = join(rank, size, "127.0.0.1:29500", device="cuda")      # in every process
    learner = Learner(model, settings, ranks=ranks)

Every process makes the same calls in the same order with the same arguments. Numbers and small objects travel over gloo on the CPU;
weights and gradients travel over NCCL if the model is on a GPU. No wait is longer than the timeout of the group.

Ranks that train one model must do the same thing at the same moment: if one of them retries with a smaller batch, stops an update early or
skips a step while the others do not, the next collective operation never ends. So each such decision is made by `Decisions`, and nowhere
else in the learner:

| decision | rule |
|---|---|
| `retry` after running out of memory | if any rank ran out of memory |
| `tokens` computed at once | the smallest number that any rank has room for |
| `recompute` activations | if any rank has to |
| `stop` of an update by its KL | by the KL of all tokens, each rank weighted by its own |
| `trust` in the engine's log-probs | if all ranks find them near |
| `skip` of a step whose loss or gradient is not finite | if any rank has one |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

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

    def gather(self, own: T) -> list[T]:
        """What every process has, in the order of their ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own, group=self.group)
        return found

    def sum_(self, tensors: list[torch.Tensor]) -> None:
        """Replace plain tensors by their sums over all processes, which are bitwise the same everywhere."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)

    def by_first(self, work: Callable[[], T]) -> T:
        """What the first process answers while the others wait; its error everywhere."""
        answer: Any = None
        problem = ""
        if self.rank == 0:
            try:
                answer = work()
            except Exception as error:
                problem = str(error) if isinstance(error, TurnwiseError) else f"{type(error).__name__}: {error}"
        answer, problem = self.gather((answer, problem))[0]
        if problem:
            raise TurnwiseError(problem)
        return answer  # type: ignore[no-any-return]

    def reduced(self, number: float, how: Any) -> float:
        """One number from those of all processes."""
        tensor = torch.tensor(float(number), dtype=torch.float64)
        dist.all_reduce(tensor, how, group=self.group)
        return float(tensor.item())


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


@dataclass
class Decisions:
    """The learner's decisions, taken together with the other processes if there are any: all of them call the same method and get the same
    answer. One process decides for itself."""

    ranks: Ranks | None = None

    def any(self, flag: bool) -> bool:
        """Whether the flag is set anywhere."""
        return flag if self.ranks is None else self.ranks.reduced(flag, dist.ReduceOp.MAX) > 0

    def smallest(self, number: float) -> float:
        """The smallest of all numbers."""
        return number if self.ranks is None else self.ranks.reduced(number, dist.ReduceOp.MIN)

    def total(self, number: float) -> float:
        """The sum of all numbers."""
        return number if self.ranks is None else self.ranks.reduced(number, dist.ReduceOp.SUM)

    def retry(self, out_of_memory: bool) -> bool:
        """Whether a step is tried again with fewer tokens at once. Call it after every attempt, whether it succeeded or not."""
        return self.any(out_of_memory)

    def tokens(self, room: int) -> int:
        """The tokens that are computed at once."""
        return int(self.smallest(room))

    def recompute(self, must: bool) -> bool:
        """Whether activations are computed twice instead of being kept."""
        return self.any(must)

    def stop(self, kl: float, limit: float | None, tokens: int = 1) -> bool:
        """Whether the policy has moved so far from the old one that the update ends. `tokens` is what this process's KL is a mean of.
        Without a limit nothing is exchanged."""
        if limit is None:
            return False
        if self.ranks is None:
            return kl > limit  # exactly this number: a product and a quotient could round it
        return self.total(kl * tokens) / max(self.total(tokens), 1) > limit

    def trust(self, near: bool) -> bool:
        """Whether the engine's log-probs are the old ones."""
        return not self.any(not near)

    def skip(self, *numbers: float) -> bool:
        """Whether an optimiser step is skipped, because a loss or a gradient norm is not finite."""
        return self.any(not all(math.isfinite(number) for number in numbers))


# Whole tensors from sharded ones, and back. Plain tensors pass unchanged, so callers need not know whether weights are sharded.


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
