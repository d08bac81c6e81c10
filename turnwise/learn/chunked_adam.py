"""AdamW for an optimiser that lives in host memory (`Weights.host`).

torch's AdamW wants all its tensors on one device. Here a weight is updated a few million numbers at a time: the chunk of its master and of
its moments is brought to the device, torch's own function makes the step, and the chunk is written back. The arithmetic is torch's, so the
weights are bitwise those that its AdamW gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from turnwise.learn.offload import ChunkStream, host_empty
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.weights import Weights
from turnwise.util.errors import TurnwiseError

CHUNK = 2**22  # numbers that are updated at once
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Part:
    """Some rows of one weight, and the options of its group."""

    name: str
    group: Mapping[str, Any]
    start: int
    stop: int


class ChunkedAdam:
    """What the optimiser needs of `torch.optim.AdamW`, for the masters of `weights`. It also writes them into the model."""

    def __init__(self, weights: Weights, groups: list[dict[str, Any]], settings: OptimiserSettings, device: torch.device):
        """A group has `names`, `lr` and `weight_decay`. `device` is where the steps are computed."""
        self.weights, self.settings, self.device = weights, settings, device
        self.param_groups = groups
        self.state: dict[str, dict[str, Tensor]] = {}
        self._stream = ChunkStream(device)

    def step(self) -> None:
        """Move all masters that have a gradient, and publish them."""
        gradients = {name: _rows(gradient.contiguous(), name) for name, gradient in self.weights.gradients().items()}
        for name in gradients:
            self._begin(name)
            self.state[name]["step"] += 1
        parts = [part for group in self.param_groups for name in group["names"] if name in gradients for part in self._parts(name, group)]
        far = [self._tensors(part) for part in parts]
        own = [self._is_its_master(part.name) for part in parts]  # such a weight is on the device already
        brought = [tensors[1:] if here else tensors for tensors, here in zip(far, own, strict=True)]

        def compute(number: int, near: list[Tensor]) -> None:
            part = parts[number]
            self._move(part, gradients[part.name], [far[number][0], *near] if own[number] else near)

        self._stream.each(brought, compute)

    def _parts(self, name: str, group: Mapping[str, Any]) -> Iterator[Part]:
        rows, size = _rows(self.weights.masters[name], name).shape
        many = max(1, CHUNK // max(size, 1))
        for start in range(0, rows, many):
            yield Part(name, group, start, min(start + many, rows))

    def _tensors(self, part: Part) -> list[Tensor]:
        """The rows of the master and of its moments."""
        moments = (self.state[part.name][kind] for kind in MOMENTS)
        tensors = [self.weights.masters[part.name].detach(), *moments]
        return [_rows(tensor, part.name)[part.start : part.stop] for tensor in tensors]

    def _move(self, part: Part, gradient: Tensor, tensors: list[Tensor]) -> None:
        """One step of some rows. `tensors` are on the device: the master and its moments."""
        step = self.state[part.name]["step"]
        fused = self.device.type == "cuda"
        before = torch.full((), float(step) - 1, device=self.device if fused else "cpu")
        master, first, second = tensors
        adamw(
            *([tensor] for tensor in (master, gradient[part.start : part.stop], first, second)),
            max_exp_avg_sqs=[],
            state_steps=[before],
            foreach=False,
            fused=fused,
            amsgrad=False,
            beta1=self.settings.betas[0],
            beta2=self.settings.betas[1],
            lr=part.group["lr"],
            weight_decay=part.group["weight_decay"],
            eps=self.settings.eps,
            maximize=False,
        )
        if not self._is_its_master(part.name):
            _rows(self.weights.parameters[part.name].data, part.name)[part.start : part.stop].copy_(master)

    def _is_its_master(self, name: str) -> bool:
        """Whether a parameter is its own master."""
        return self.weights.masters[name] is self.weights.parameters[name]

    def _begin(self, name: str) -> None:
        """Moments of zero for a weight that has none yet."""
        if name in self.state:
            return
        shape = tuple(self.weights.masters[name].shape)
        moments = {kind: host_empty(shape, torch.float32, self.device).zero_() for kind in MOMENTS}
        self.state[name] = {"step": torch.zeros(()), **moments}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue with this state: what `state` was, by weight and kind."""
        self.state = {}
        for name, own in tensors.items():
            self._begin(name)
            for kind, tensor in self.state[name].items():
                tensor.copy_(own[kind])


def _rows(tensor: Tensor, name: str) -> Tensor:
    """A tensor as a matrix whose rows are its last axis, in the same memory."""
    if not tensor.is_contiguous():
        raise TurnwiseError(f"optimiser: {name!r} is not contiguous in memory, which learner.optimiser_place needs")
    return tensor.view(-1, tensor.shape[-1] if tensor.dim() else 1)
