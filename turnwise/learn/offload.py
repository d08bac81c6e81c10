"""Host offload: tensors that live in host memory and come to a device to compute with.

`ChunkStream` computes with sets of tensors one after another (the optimiser's state); `OffloadedModel` is a frozen model whose layers come
one after another (the reference). In both, two buffers on the device take turns: while one is computed with, the next tensors arrive in
the other on a separate stream. On a CPU the same copies are made one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.util.errors import TurnwiseError

ALIGNED = 256  # bytes
BUFFERS = 2


def host_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in host memory, pinned if `device` is a GPU."""
    return host_empty(tensor.shape, tensor.dtype, device).copy_(tensor.detach())


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory, pinned if `device` is a GPU."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """The bytes of a buffer for these tensors."""
    return sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in tensors)


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
        size = max((bytes_of(tensors) for tensors in sets), default=0)
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


class _WeightGroup:
    """Weights that come and go together: one piece of host memory, in the order in which the fused layers join them."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], dtype: torch.dtype, device: torch.device):
        self.weights = [weight for _, weight in sorted(named, key=lambda pair: _order(pair[0]))]
        self.size = sum(weight.numel() for weight in self.weights)
        self.host = host_empty((self.size,), dtype, device)
        for weight, view in zip(self.weights, self.views(self.host), strict=True):
            view.copy_(weight.data)
        self.point_to(self.host)

    def views(self, memory: Tensor) -> list[Tensor]:
        """The weights as parts of a piece of memory."""
        parts = memory[: self.size].split([weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def point_to(self, memory: Tensor) -> None:
        """Make the weights parts of this memory."""
        for weight, view in zip(self.weights, self.views(memory), strict=True):
            weight.data = view

    def is_in(self, memory: Tensor) -> bool:
        """Whether the weights are parts of this memory."""
        return all(weight.data_ptr() == view.data_ptr() for weight, view in zip(self.weights, self.views(memory), strict=True))


class OffloadedModel:
    """The weights of `model`, a causal language model that is never trained, in host memory; `device` is where it computes.

    While it is `active`, the device holds the embeddings, the last norm and the output layer, and two buffers of the size of a layer. The
    weights of layer i are views of buffer i mod 2 all the time: what changes is the content. Before a layer computes, the next one's
    weights are copied into the other buffer, after all that was computed with it. Outside, the device holds nothing."""

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        layers = _layers(model)
        inner = {id(weight) for layer in layers for weight in layer.parameters()}
        self.layers = [_WeightGroup(list(layer.named_parameters()), dtype, device) for layer in layers]
        self.root = _WeightGroup([(name, weight) for name, weight in model.named_parameters() if id(weight) not in inner], dtype, device)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, number=number: self.fetch(number))
        model.fetch_layer = self.fetch  # for layers that are computed without their modules
        self._buffers: list[Tensor] = []
        self._loaded: list[int | None] = [None] * BUFFERS  # the layer in each buffer
        self._arrived: list[Any] = [None] * BUFFERS
        self._stream: Any = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model can compute on its device."""
        if self._buffers:
            yield
            return
        root = self.root.host.to(self.device, non_blocking=True, copy=True)
        largest = max((group.size for group in self.layers), default=0)
        self._buffers = [torch.empty(largest, dtype=self.dtype, device=self.device) for _ in range(BUFFERS)]
        self._loaded = [None] * BUFFERS
        self.root.point_to(root)
        for number, group in enumerate(self.layers):
            group.point_to(self._buffers[number % BUFFERS])
        moved = False
        try:
            yield
        finally:
            moved = not all(group.is_in(self._buffers[number % BUFFERS]) for number, group in enumerate(self.layers))
            self._close()
        if moved:
            raise TurnwiseError(
                "the layers of this model move their weights, so they cannot come from host memory: set learner.reference_place = 'device'"
            )

    def _close(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)  # the buffers are freed: no copy may still be under way
        for group in (self.root, *self.layers):
            group.point_to(group.host)
        self._buffers = []

    def fetch(self, number: int) -> None:
        """Before a layer computes: its weights are there, and those of the next one are coming."""
        if not self._buffers:
            raise TurnwiseError("this model's weights are in host memory: compute with it inside active()")
        for wanted in (number, number + 1):
            if wanted < len(self.layers) and self._loaded[wanted % BUFFERS] != wanted:
                self._load(wanted)
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self._arrived[number % BUFFERS])

    def _load(self, number: int) -> None:
        group, slot = self.layers[number], number % BUFFERS
        target = self._buffers[slot][: group.size]
        self._loaded[slot] = number
        if self.device.type != "cuda":
            target.copy_(group.host)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        before = torch.cuda.current_stream(self.device).record_event()  # whatever computes with the buffer has been submitted
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(before)
            target.copy_(group.host, non_blocking=True)
            self._arrived[slot] = self._stream.record_event()


def fetch_of(model: Any) -> Callable[[int], None] | None:
    """What brings a layer of this model to the device; None if its weights are on the device anyway."""
    fetch: Callable[[int], None] | None = vars(model).get("fetch_layer")
    return fetch


def host_copy_of(model: nn.Module) -> Any:
    """A copy of a model whose weights are in host memory; nothing is copied on the device but its buffers."""
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach().to("cpu", copy=True), requires_grad=False)
    return copy.deepcopy(model, memo)


def _layers(model: Any) -> list[nn.Module]:
    """The layers: the longest list of modules. Empty if there is none, or if layers share weights; all weights then come at once."""
    lists = [list(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=len, default=[])
    weights = [id(weight) for layer in layers for weight in layer.parameters()]
    return layers if len(set(weights)) == len(weights) else []


def _order(name: str) -> tuple[str, str]:
    """Weights of neighbouring modules are next to each other, and so are their biases."""
    module, _, kind = name.rpartition(".")
    return module.rpartition(".")[0], kind
