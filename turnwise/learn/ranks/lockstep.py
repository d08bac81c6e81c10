"""Passes that all processes make together.

A pass through a sharded model is a fixed sequence of collective operations: gather the weights of a layer, of the next one, …, and on the
way back reduce the gradients. A process that runs out of memory in the middle cannot make the rest of the pass, and the others would wait
for it. So every pass notes its operations. The failing process frees its memory, makes the remaining operations of this pass and of all
passes still to come with zeros, and then reports the failure where all of them decide together what to do. What the others computed
with those zeros is discarded by that decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from turnwise.learn.ranks.waits import waits
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")
P = TypeVar("P")
Operation = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype, Any]  # kind, shapes of output and input, dtype, group


class Lockstep:
    """The passes of one sharded model. `reset` frees what an aborted pass has left behind."""

    def __init__(self, device: torch.device, reset: Callable[[], None]):
        self._device, self._reset = device, reset
        self.passes = 0  # made so far, idle ones included
        self._made: list[Operation] = []
        self._known: dict[str, list[Operation]] = {}  # the operations of a pass of each kind

    def each(self, kind: str, parts: Sequence[P | None], work: Callable[[P], T], idle: Callable[[], Any]) -> list[T]:
        """The results of `work` for all parts that are not None; `idle` makes the pass of a None. All processes have the same number of
        parts. `kind` names passes with the same operations; the first one of a kind is preceded by an idle one, which notes them."""
        if kind not in self._known:
            self._made = []
            idle()
            self._known[kind] = self._made
        done: list[T] = []
        for number, part in enumerate(parts):
            self._made, self.passes = [], self.passes + 1
            failed = ""
            try:
                if part is None:
                    idle()
                else:
                    done.append(work(part))
            except torch.OutOfMemoryError as error:
                failed = str(error) or "no memory left"
            if failed:  # outside the handler: the error's frames hold the tensors that filled the memory
                self._catch_up(kind, len(self._made), len(parts) - number - 1)
                raise torch.OutOfMemoryError(failed)
        return done

    def _catch_up(self, kind: str, made: int, passes: int) -> None:
        self._reset()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        operations = self._known[kind]
        for operation in operations[made:] + operations * passes:
            self._empty(*operation)

    def _empty(self, kind: str, out: tuple[int, ...], own: tuple[int, ...], dtype: torch.dtype, group: Any) -> None:
        given, got = torch.zeros(own, dtype=dtype, device=self._device), torch.empty(out, dtype=dtype, device=self._device)
        if kind == "gather":
            _gather(got, given, group=group)
        else:
            _reduce(got, given, group=group)

    def note(self, kind: str, out: Tensor, own: Tensor, group: Any) -> None:
        """One more operation is about to be made."""
        self._made.append((kind, tuple(out.shape), tuple(own.shape), out.dtype, group))


class _Comm:
    """How FSDP2 exchanges tensors, noted."""

    def __init__(self, lockstep: Lockstep):
        self._lockstep = lockstep

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Comm):
    """All-gather of weights."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._lockstep.note("gather", output_tensor, input_tensor, group)
        with waits.exchange(input_tensor):
            return _gather(output_tensor, input_tensor, group=group, async_op=async_op)


class Reduce(_Comm):
    """Reduce-scatter of gradients: always a sum."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        if op != dist.ReduceOp.SUM:
            raise TurnwiseError(f"gradients of several ranks are summed, and torch {torch.__version__} asks for {op}: is it supported?")
        self._lockstep.note("reduce", output_tensor, input_tensor, group)
        with waits.exchange(input_tensor):
            return _reduce(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the newer names of the same operations
_reduce: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
