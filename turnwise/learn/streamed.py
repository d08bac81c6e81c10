"""A frozen model whose weights are in host memory, and come to the device layer by layer.

While it is `active`, the device holds the embeddings, the last norm and the output layer, and two buffers of the size of a layer. The
weights of layer i are views of buffer i mod 2 all the time: what changes is the content. Before a layer computes, the next one's weights
are copied into the other buffer on a separate stream, after all that was computed with it. Outside, the device holds nothing.

A layer's weights are one piece of memory in the order in which the fused layers join them, so nobody has to move them. On a CPU the same
copies are made one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.learn.carrier import host_empty
from turnwise.util.errors import TurnwiseError

BUFFERS = 2


class Group:
    """Weights that come and go together: one piece of host memory."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], dtype: torch.dtype, device: torch.device):
        self.weights = [weight for _, weight in sorted(named, key=lambda pair: _order(pair[0]))]
        self.size = sum(weight.numel() for weight in self.weights)
        self.home = host_empty((self.size,), dtype, device)
        for weight, view in zip(self.weights, self.views(self.home), strict=True):
            view.copy_(weight.data)
        self.settle(self.home)

    def views(self, memory: Tensor) -> list[Tensor]:
        """The weights as parts of a piece of memory."""
        parts = memory[: self.size].split([weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def settle(self, memory: Tensor) -> None:
        """Make the weights parts of this memory."""
        for weight, view in zip(self.weights, self.views(memory), strict=True):
            weight.data = view

    def is_in(self, memory: Tensor) -> bool:
        """Whether the weights are parts of this memory."""
        return all(weight.data_ptr() == view.data_ptr() for weight, view in zip(self.weights, self.views(memory), strict=True))


class Streamed:
    """The weights of `model`, a causal language model that is never trained, in host memory; `device` is where it computes."""

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        layers = _layers(model)
        inner = {id(weight) for layer in layers for weight in layer.parameters()}
        self.layers = [Group(list(layer.named_parameters()), dtype, device) for layer in layers]
        self.root = Group([(name, weight) for name, weight in model.named_parameters() if id(weight) not in inner], dtype, device)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, number=number: self.fetch(number))
        model.fetch_layer = self.fetch  # for layers that are computed without their modules
        self._buffers: list[Tensor] = []
        self._held: list[int | None] = [None] * BUFFERS  # the layer in each buffer
        self._arrived: list[Any] = [None] * BUFFERS
        self._stream: Any = None

    @property
    def bytes_(self) -> int:
        """The bytes that the device holds while it is active."""
        largest = max((group.size for group in self.layers), default=0)
        return int((self.root.size + min(BUFFERS, len(self.layers)) * largest) * self.root.home.element_size())

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model can compute on its device."""
        if self._buffers:
            yield
            return
        root = self.root.home.to(self.device, non_blocking=True, copy=True)
        largest = max((group.size for group in self.layers), default=0)
        self._buffers = [torch.empty(largest, dtype=self.dtype, device=self.device) for _ in range(BUFFERS)]
        self._held = [None] * BUFFERS
        self.root.settle(root)
        for number, group in enumerate(self.layers):
            group.settle(self._buffers[number % BUFFERS])
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
            group.settle(group.home)
        self._buffers = []

    def fetch(self, number: int) -> None:
        """Before a layer computes: its weights are there, and those of the next one are coming."""
        if not self._buffers:
            raise TurnwiseError("this model's weights are in host memory: compute with it inside active()")
        for wanted in (number, number + 1):
            if wanted < len(self.layers) and self._held[wanted % BUFFERS] != wanted:
                self._load(wanted)
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self._arrived[number % BUFFERS])

    def _load(self, number: int) -> None:
        group, slot = self.layers[number], number % BUFFERS
        target = self._buffers[slot][: group.size]
        self._held[slot] = number
        if self.device.type != "cuda":
            target.copy_(group.home)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        before = torch.cuda.current_stream(self.device).record_event()  # whatever computes with the buffer has been submitted
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(before)
            target.copy_(group.home, non_blocking=True)
            self._arrived[slot] = self._stream.record_event()


def is_streamed(model: Any) -> bool:
    """Whether the layers of this model come from host memory."""
    return hasattr(model, "fetch_layer")


def host_twin(model: nn.Module) -> Any:
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
