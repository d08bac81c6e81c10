"""AdamW in chunks, for moments in 8 bits and for an optimiser that lives in host memory.

torch's AdamW wants all its tensors as they are, in one place. Here a weight is updated a few million numbers at a time: moments are
unpacked, torch's own function makes the step, and they are packed again. With weights whose masters are in host memory (`Weights.host`),
each chunk is brought to the device for this and carried back. The arithmetic is torch's, so float32 moments give bitwise the weights that
its AdamW gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from turnwise.learn import moments
from turnwise.learn.carrier import Carrier, host_empty
from turnwise.learn.settings import OptimiserSettings
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.learn.optimiser import Weights

CHUNK = 2**22  # numbers that are updated at once
EXACT = ("exp_avg", "exp_avg_sq")
PACKED = tuple(f"{kind}_{part}" for kind in EXACT for part in ("codes", "scales"))
KINDS = ("step", *EXACT, *PACKED)


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
        self._carrier = Carrier(device)

    @property
    def bytes_to_come(self) -> int:
        """The bytes that the moments will take on the device."""
        if self.weights.host:
            return 0
        return sum(moments.moment_bytes(master) if self._packs(master) else 8 * master.numel() for master in self.weights.masters.values())

    def step(self) -> None:
        """Move all masters that have a gradient, and publish them."""
        gradients = {name: _rows(gradient.contiguous(), name) for name, gradient in self.weights.gradients().items()}
        for name in gradients:
            self._begin(name)
            self.state[name]["step"] += 1
        parts = [part for group in self.param_groups for name in group["names"] if name in gradients for part in self._parts(name, group)]
        if not self.weights.host:
            for part in parts:
                self._move(part, gradients[part.name], self._tensors(part))
            return
        far = [self._tensors(part) for part in parts]
        own = [self._is_own(part.name) for part in parts]  # such a weight is on the device already
        brought = [tensors[1:] if here else tensors for tensors, here in zip(far, own, strict=True)]

        def compute(number: int, near: list[Tensor]) -> None:
            part = parts[number]
            self._move(part, gradients[part.name], [far[number][0], *near] if own[number] else near)

        self._carrier.each(brought, compute)

    def _parts(self, name: str, group: Mapping[str, Any]) -> Iterator[Part]:
        rows, size = _rows(self.weights.masters[name], name).shape
        many = max(1, CHUNK // max(size, 1))
        for start in range(0, rows, many):
            yield Part(name, group, start, min(start + many, rows))

    def _tensors(self, part: Part) -> list[Tensor]:
        """The rows of the master and of the tensors of its state."""
        kept = self.state[part.name]
        kinds = PACKED if PACKED[0] in kept else EXACT
        tensors = [self.weights.masters[part.name].detach(), *(kept[kind] for kind in kinds)]
        return [_rows(tensor, part.name)[part.start : part.stop] for tensor in tensors]

    def _move(self, part: Part, gradient: Tensor, tensors: list[Tensor]) -> None:
        """One step of some rows. `tensors` are on the device: the master and its moments, packed or not."""
        master, *stored = tensors
        packed = len(stored) == len(PACKED)
        kept = [moments.unpack(stored[0], stored[1], True), moments.unpack(stored[2], stored[3], False)] if packed else stored
        step = self.state[part.name]["step"]
        fused = self.device.type == "cuda"
        before = torch.full((), float(step) - 1, device=self.device if fused else "cpu")
        adamw(
            *([tensor] for tensor in (master, gradient[part.start : part.stop], *kept)),
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
        if packed:
            random = torch.Generator(self.device)
            random.manual_seed(derive(int(step), "moments", part.name, part.start))
            moments.pack(kept[0], stored[0], stored[1], True, random)
            moments.pack(kept[1], stored[2], stored[3], False, random)
        if not self._is_own(part.name):
            _rows(self.weights.parameters[part.name].data, part.name)[part.start : part.stop].copy_(master)

    def _is_own(self, name: str) -> bool:
        """Whether a parameter is its own master."""
        return self.weights.masters[name] is self.weights.parameters[name]

    def _packs(self, master: Tensor) -> bool:
        return self.settings.moments == "8bit" and moments.packable(master)

    def _begin(self, name: str) -> None:
        """Moments of zero for a weight that has none yet."""
        if name in self.state:
            return
        self.state[name] = {"step": torch.zeros(())}
        for kind, (shape, dtype) in self._shapes(name).items():
            self.state[name][kind] = self._room(shape, dtype).zero_()

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return host_empty(shape, dtype, self.device) if self.weights.host else torch.empty(shape, dtype=dtype, device=self.device)

    def _shapes(self, name: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What is kept for a weight in addition to its step."""
        master = self.weights.masters[name]
        shape = tuple(master.shape)
        if not self._packs(master):
            return dict.fromkeys(EXACT, (shape, torch.float32))
        forms = {"codes": (shape, torch.uint8), "scales": ((*shape[:-1], moments.blocks_of(master)), torch.float32)}
        return {f"{kind}_{part}": form for kind in EXACT for part, form in forms.items()}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue with this state: what `state` was, by weight and kind."""
        for name, own in tensors.items():
            wanted = self._shapes(name)
            if own.keys() != {"step", *wanted}:
                raise TurnwiseError(
                    f"optimiser state: the moments of {name!r} are not stored as learner.moments = {self.settings.moments!r} stores them: "
                    "set learner.moments to what the state was saved with"
                )
            for kind, (shape, _) in wanted.items():
                if tuple(own[kind].shape) != shape:
                    raise TurnwiseError(f"optimiser state: {name}/{kind} has shape {tuple(own[kind].shape)}, and {shape} is needed")
        self.state = {}
        for name, own in tensors.items():
            self.state[name] = {"step": own["step"].detach().float().cpu().clone()}
            for kind, (shape, dtype) in self._shapes(name).items():
                self.state[name][kind] = self._room(shape, dtype).copy_(own[kind])


def _rows(tensor: Tensor, name: str) -> Tensor:
    """A tensor as a matrix whose rows are its last axis, in the same memory."""
    if not tensor.is_contiguous():
        raise TurnwiseError(f"optimiser: {name!r} is not contiguous in memory, which learner.moments and learner.optimiser_place need")
    return tensor.view(-1, tensor.shape[-1] if tensor.dim() else 1)
