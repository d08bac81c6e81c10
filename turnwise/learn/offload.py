"""Host offload: tensors that live in host memory and come to a device to compute with.

`ChunkStream` computes with sets of tensors one after another (the optimiser's state). Two buffers on the device take turns: while one is
computed with, the next tensors arrive in the other on a separate stream. On a CPU the same copies are made one after another.
`OffloadedModel` is a frozen model that comes as a whole for a pass (the reference): while it scores, there are no gradients on the device,
which take more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ALIGNED = 256  # bytes
BUFFERS = 2


def host_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in host memory, pinned if `device` is a GPU."""
    return host_empty(tensor.shape, tensor.dtype, device).copy_(tensor.detach())


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory, pinned if `device` is a GPU."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def views(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parts of a buffer of bytes with the shapes and types of these tensors."""
    parts, start = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        parts.append(buffer[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += _aligned(size)
    return parts


class ChunkStream:
    """Computes with sets of host tensors, one set after another, on a device. Arriving and leaving have separate streams, because a bus
    carries both directions at once."""

    def __init__(self, device: torch.device):
        self.device = device
        self._streams: tuple[Any, Any] | None = None

    def each(self, sets: Sequence[Sequence[Tensor]], compute: Callable[[int, list[Tensor]], None]) -> None:
        """Call `compute` with the number of each set and with its tensors on the device. What it writes into them is stored."""
        size = max((sum(_aligned(one.numel() * one.element_size()) for one in tensors) for tensors in sets), default=0)
        buffers = [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(BUFFERS)]
        if self.device.type == "cuda":
            self._overlapped(sets, buffers, compute)
            return
        for number, host in enumerate(sets):
            near = _copied(views(buffers[number % BUFFERS], host), host)
            compute(number, near)
            _copied(host, near)

    def _overlapped(self, sets: Sequence[Sequence[Tensor]], buffers: list[Tensor], compute: Callable[[int, list[Tensor]], None]) -> None:
        if self._streams is None:
            self._streams = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        coming, going = self._streams
        current = torch.cuda.current_stream(self.device)
        left: list[Any] = [current.record_event(), current.record_event()]  # when each buffer is free again
        arrived: list[Any] = [None, None]

        def fetch(number: int) -> list[Tensor]:
            slot, host = number % BUFFERS, sets[number]
            near = views(buffers[slot], host)
            with torch.cuda.stream(coming):
                coming.wait_event(left[slot])
                _copied(near, host)
                arrived[slot] = coming.record_event()
            return near

        near = fetch(0) if sets else []
        for number, host in enumerate(sets):
            following = fetch(number + 1) if number + 1 < len(sets) else []
            current.wait_event(arrived[number % BUFFERS])
            compute(number, near)
            done = current.record_event()
            with torch.cuda.stream(going):
                going.wait_event(done)
                _copied(host, near)
                left[number % BUFFERS] = going.record_event()
            near = following
        current.wait_stream(going)
        going.synchronize()  # the host may read its tensors now, and the buffers may be reused


def _copied(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
    return list(targets)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class OffloadedModel:
    """The weights of `model`, a causal language model that is never trained, in one piece of host memory; `device` is where it computes.
    While it is `active`, its device holds a copy of that piece, of which the weights are parts. Outside, it holds nothing."""

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype):
        self.device = device
        self.weights = [weight for _, weight in sorted(model.named_parameters(), key=lambda pair: _order(pair[0]))]
        self.host = host_empty((sum(weight.numel() for weight in self.weights),), dtype, device)
        for weight, part in zip(self.weights, self._parts(self.host), strict=True):
            weight.data = part.copy_(weight.data)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model can compute on its device."""
        self._point_to(self.host.to(self.device, non_blocking=True, copy=True))
        try:
            yield
        finally:
            self._point_to(self.host)

    def _parts(self, memory: Tensor) -> list[Tensor]:
        """The weights as parts of a piece of memory."""
        parts = memory.split([weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def _point_to(self, memory: Tensor) -> None:
        """Make the weights parts of this memory."""
        for weight, part in zip(self.weights, self._parts(memory), strict=True):
            weight.data = part


def _order(name: str) -> tuple[str, str]:
    """Weights of neighbouring modules are next to each other, as the fused layers join them, and so are their biases."""
    module, _, kind = name.rpartition(".")
    return module.rpartition(".")[0], kind
