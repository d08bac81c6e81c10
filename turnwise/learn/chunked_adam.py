"""AdamW in chunks, for moments in 8 bits and for an optimiser that lives in host memory.

torch's AdamW wants all its tensors as they are, on one device. Here a weight is updated a few million numbers at a time: moments are
unpacked, torch's own function makes the step, and they are packed again. With weights whose masters are in host memory (`Weights.host`),
each chunk is brought to the device for this and written back. The arithmetic is torch's, so float32 moments give bitwise the weights that
its AdamW gives.

Moments in 8 bits: a moment is cut along its last axis into blocks of 128 numbers. A block stores its largest magnitude in float32, and
every number as one byte: its magnitude relative to the largest, on a logarithmic scale of eight codes per power of two. The first moment
needs one bit for the sign, which leaves a range of 2**16; the second is never negative and has a range of 2**32. Both ranges fit each
other, because the update divides by the square root of the second moment.

Rounding is random and right on average. With rounding to the nearest code a slow average would never move: a step changes the second
moment by a thousandth, and two codes are nine hundredths apart. The random numbers depend on the step and the weight's name only. A second
moment that is not zero never becomes zero, because the update divides by it. The result is 2.06 bytes per weight instead of 8. Norms,
biases and small tensors stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.adamw import adamw

from turnwise.learn.offload import ChunkStream, host_empty
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.weights import Weights
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

CHUNK = 2**22  # numbers that are updated at once
BLOCK = 128  # numbers that share a scale
FEWEST = 4096  # smaller tensors stay float32
STEPS = 8  # codes per power of two
SIGN = 128
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
        self._stream = ChunkStream(device)

    @property
    def bytes_to_come(self) -> int:
        """The bytes that the moments will take on the device."""
        if self.weights.host:
            return 0
        return sum(moment_bytes(master) if self._packs(master) else 8 * master.numel() for master in self.weights.masters.values())

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
        """The rows of the master and of the tensors of its state."""
        kept = self.state[part.name]
        kinds = PACKED if PACKED[0] in kept else EXACT
        tensors = [self.weights.masters[part.name].detach(), *(kept[kind] for kind in kinds)]
        return [_rows(tensor, part.name)[part.start : part.stop] for tensor in tensors]

    def _move(self, part: Part, gradient: Tensor, tensors: list[Tensor]) -> None:
        """One step of some rows. `tensors` are on the device: the master and its moments, packed or not."""
        master, *stored = tensors
        packed = len(stored) == len(PACKED)
        kept = [unpack_moment(stored[0], stored[1], True), unpack_moment(stored[2], stored[3], False)] if packed else stored
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
            pack_moment(kept[0], stored[0], stored[1], True, random)
            pack_moment(kept[1], stored[2], stored[3], False, random)
        if not self._is_its_master(part.name):
            _rows(self.weights.parameters[part.name].data, part.name)[part.start : part.stop].copy_(master)

    def _is_its_master(self, name: str) -> bool:
        """Whether a parameter is its own master."""
        return self.weights.masters[name] is self.weights.parameters[name]

    def _packs(self, master: Tensor) -> bool:
        return self.settings.moments == "8bit" and packable(master)

    def _begin(self, name: str) -> None:
        """Moments of zero for a weight that has none yet."""
        if name in self.state:
            return
        self.state[name] = {"step": torch.zeros(())}
        for kind, (shape, dtype) in self._shapes(name).items():
            self.state[name][kind] = self._empty(shape, dtype).zero_()

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return host_empty(shape, dtype, self.device) if self.weights.host else torch.empty(shape, dtype=dtype, device=self.device)

    def _shapes(self, name: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What is kept for a weight in addition to its step."""
        master = self.weights.masters[name]
        shape = tuple(master.shape)
        if not self._packs(master):
            return dict.fromkeys(EXACT, (shape, torch.float32))
        forms = {"codes": (shape, torch.uint8), "scales": ((*shape[:-1], blocks_of(master)), torch.float32)}
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
                self.state[name][kind] = self._empty(shape, dtype).copy_(own[kind])


def _rows(tensor: Tensor, name: str) -> Tensor:
    """A tensor as a matrix whose rows are its last axis, in the same memory."""
    if not tensor.is_contiguous():
        raise TurnwiseError(f"optimiser: {name!r} is not contiguous in memory, which learner.moments and learner.optimiser_place need")
    return tensor.view(-1, tensor.shape[-1] if tensor.dim() else 1)


def packable(weight: Tensor) -> bool:
    """Whether a weight's moments are stored in 8 bits."""
    return bool(weight.dim() > 1 and weight.numel() >= FEWEST)


def blocks_of(weight: Tensor) -> int:
    """The number of blocks of a row."""
    return -(-int(weight.shape[-1]) // BLOCK)


def moment_bytes(weight: Tensor) -> int:
    """The bytes of both moments of a weight in this form."""
    count, size = int(weight.numel()), int(weight.shape[-1]) if weight.dim() else 1
    return 2 * (count + 4 * (count // size) * blocks_of(weight)) if packable(weight) else 8 * count


def pack_moment(values: Tensor, codes: Tensor, scales: Tensor, signed: bool, random: torch.Generator) -> None:
    """Store numbers, [rows, size], as codes (uint8) of the same shape and scales, [rows, blocks]."""
    rows, size = values.shape
    blocked = pad(values, (0, -size % BLOCK)).view(rows, -1, BLOCK)
    magnitude = blocked.abs()
    largest = magnitude.amax(-1, keepdim=True)
    share = magnitude / torch.where(largest > 0, largest, 1.0)
    top = SIGN - 1 if signed else 255
    levels = _levels(top, values.device)
    low = (torch.log2(share) * STEPS + top).floor_().clamp_(0, top).to(torch.int32)
    below, above = levels[low], levels[(low + 1).clamp_(max=top)]
    chance = (share - below) / torch.where(above > below, above - below, 1.0)
    drawn = torch.rand(share.shape, generator=random, device=share.device)
    low += drawn < chance
    if signed:
        low += SIGN * (blocked < 0)
    else:
        low = torch.maximum(low, (blocked > 0).to(torch.int32))
    codes.copy_(low.view(rows, -1)[:, :size])
    scales.copy_(largest[..., 0])


def unpack_moment(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """The numbers, [rows, size], float32."""
    rows, size = codes.shape
    number = codes.to(torch.int32)
    top = SIGN - 1 if signed else 255
    values = _levels(top, codes.device)[number & top]
    if signed:
        values = torch.where(number >= SIGN, -values, values)
    return (pad(values, (0, -size % BLOCK)).view(rows, -1, BLOCK) * scales[..., None]).view(rows, -1)[:, :size].contiguous()


@lru_cache(maxsize=8)
def _levels(top: int, device: torch.device) -> Tensor:
    """What the codes 0 to `top` stand for, as a share of the largest: 0 for code 0, 1 for the last."""
    levels = torch.exp2((torch.arange(top + 1, dtype=torch.float64) - top) / STEPS)
    levels[0] = 0.0
    return levels.float().to(device)
