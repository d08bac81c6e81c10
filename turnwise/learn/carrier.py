"""Tensors that live in host memory and are brought to a device to compute with.

Two buffers on the device take turns: while one is computed with, the next tensors arrive in the other, and what was changed before leaves.
Arriving and leaving have separate streams, because a bus carries both directions at once. On a CPU the same copies are made one after
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

ALIGNED = 256  # bytes


def host_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in host memory, which `device` can read without a detour."""
    return host_empty(tensor.shape, tensor.dtype, device).copy_(tensor.detach())


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory, which `device` can read without a detour."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """The bytes of a buffer for these tensors."""
    return sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in tensors)


def views(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parts of a buffer of bytes with the shapes and types of these tensors."""
    found, start = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        found.append(buffer[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += _aligned(size)
    return found


class Carrier:
    """Computes with sets of host tensors, one set after another, on a device."""

    def __init__(self, device: torch.device):
        self.device = device
        self._streams: tuple[Any, Any] | None = None

    def each(self, sets: Sequence[Sequence[Tensor]], compute: Callable[[int, list[Tensor]], None]) -> None:
        """Call `compute` with the number of each set and with its tensors on the device. What it writes into them is stored."""
        size = max((bytes_of(tensors) for tensors in sets), default=0)
        buffers = [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(2)]
        if self.device.type == "cuda":
            self._overlapped(sets, buffers, compute)
            return
        for number, far in enumerate(sets):
            near = _copied(views(buffers[number % 2], far), far)
            compute(number, near)
            _copied(far, near)

    def _overlapped(self, sets: Sequence[Sequence[Tensor]], buffers: list[Tensor], compute: Callable[[int, list[Tensor]], None]) -> None:
        if self._streams is None:
            self._streams = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        coming, going = self._streams
        current = torch.cuda.current_stream(self.device)
        left: list[Any] = [current.record_event(), current.record_event()]  # when each buffer is free again
        arrived: list[Any] = [None, None]

        def fetch(number: int) -> list[Tensor]:
            slot, far = number % 2, sets[number]
            near = views(buffers[slot], far)
            with torch.cuda.stream(coming):
                coming.wait_event(left[slot])
                _copied(near, far)
                arrived[slot] = coming.record_event()
            return near

        near = fetch(0) if sets else []
        for number, far in enumerate(sets):
            following = fetch(number + 1) if number + 1 < len(sets) else []
            current.wait_event(arrived[number % 2])
            compute(number, near)
            done = current.record_event()
            with torch.cuda.stream(going):
                going.wait_event(done)
                _copied(far, near)
                left[number % 2] = going.record_event()
            near = following
        current.wait_stream(going)
        going.synchronize()  # the host may read its tensors now, and the buffers may be reused


def _copied(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
    return list(targets)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
