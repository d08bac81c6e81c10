"""Weights with a float32 copy, and AdamW on that copy.

A model that computes in bfloat16 cannot learn in it: a step of 1e-6 of a weight is smaller than its last bit. So each trained weight has
a float32 master; gradients of every micro-batch are added up on the masters in float32, AdamW moves them, and `publish` writes them back
into the model. A weight that is already float32 is its own master and needs no extra memory.

With `host`, the masters and AdamW's moments are in host memory, and a step brings them to the device in chunks (`chunked.py`). Gradients
stay on the device.

A step whose loss or gradient is not finite is skipped: the weights and the moments stay as they were. A few of them in a row end training.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.learn.carrier import host_copy
from turnwise.learn.chunked import EXACT, KINDS, ChunkedAdam
from turnwise.learn.decide import Decisions
from turnwise.learn.homes import Home, settle
from turnwise.learn.ranks.tensors import held, placed_like, put, whole
from turnwise.learn.settings import OptimiserSettings
from turnwise.util.errors import TurnwiseError


class Weights:
    """The trained parameters by name, and the float32 master of each."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        dtype: torch.dtype = torch.float32,
        exact: Container[str] = (),
        host: bool = False,
    ):
        """`dtype` is what the model computes in: parameters are changed to it, except those named in `exact`, which become float32.
        Masters are copies of the original parameters. `host`: masters that are copies, and the moments, are in host memory."""
        self.parameters: dict[str, nn.Parameter] = dict(named)
        self.masters: dict[str, Tensor] = {}
        self.host = host
        self._sums: dict[str, Tensor] = {}  # gradients of masters in host memory, on the model's device
        for name, parameter in self.parameters.items():
            if parameter.dtype == torch.float32 and (dtype == torch.float32 or name in exact):
                self.masters[name] = parameter
                continue
            full = parameter.data.float()
            parameter.data = full if name in exact else full.to(dtype)
            if parameter.dtype == torch.float32:
                self.masters[name] = parameter
                continue
            master = host_copy(full, full.device) if host else full.clone()
            self.masters[name] = master
            settle(parameter, Home(master, self._sums if host else None, name))

    def gradients(self) -> dict[str, Tensor]:
        """The gradients by name, on the model's device; without those of weights that have none."""
        found = {name: self._sums.get(name, master.grad) for name, master in self.masters.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def put_gradient(self, name: str, gradient: Tensor) -> None:
        """Set the gradient of a weight."""
        if self.host and self.masters[name] is not self.parameters[name]:
            self._sums[name] = gradient
        else:
            self.masters[name].grad = gradient

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for tensor in (*self.parameters.values(), *self.masters.values()):
            tensor.grad = None
        self._sums.clear()

    def publish(self) -> None:
        """Write the masters into the model."""
        copied = [name for name, parameter in self.parameters.items() if self.masters[name] is not parameter]
        if copied:
            torch._foreach_copy_([self.parameters[name].data for name in copied], [self.masters[name] for name in copied])

    def tensors(self) -> dict[str, Tensor]:
        """The masters, detached, by name."""
        return {name: master.detach() for name, master in self.masters.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load these values; names and shapes must be exactly those of the model."""
        check_names("weights", tensors, self.masters)
        for name, master in self.masters.items():
            put(master, tensors[name])
        self.publish()


@dataclass(frozen=True)
class Step:
    """The result of one optimiser step. `taken` is false if the loss or the gradient was not finite."""

    taken: bool
    grad_norm: float
    lr: float


class Optimiser:
    """AdamW over the masters of `weights`, with warm-up, learning-rate schedule and clipping."""

    def __init__(
        self, weights: Weights, settings: OptimiserSettings, own_lr: Mapping[str, float] | None = None, decisions: Decisions | None = None
    ):
        """`own_lr` gives some weights, by name, a separate learning rate; the learning-rate schedule also applies to it."""
        self.weights, self.settings, self._decisions = weights, settings, decisions or Decisions()
        self.look: Callable[[Weights], None] = lambda weights: None  # called with the gradients before every step, before clipping
        self.steps_taken = 0
        self.bad_in_a_row = 0
        masters, rates = weights.masters, own_lr or {}
        if not masters:
            raise TurnwiseError("the model has no weight that requires a gradient: nothing to train")
        groups: dict[tuple[float, float], list[str]] = {}
        for name, master in masters.items():
            decay = settings.weight_decay if master.dim() > 1 else 0.0
            groups.setdefault((rates.get(name, settings.lr), decay), []).append(name)
        self._rates = [rate for rate, _ in groups]
        self._adam = self._make(groups)

    def _make(self, groups: Mapping[tuple[float, float], list[str]]) -> Any:
        """torch's AdamW; our own in chunks if moments or masters are kept in another form or place."""
        settings, weights, masters = self.settings, self.weights, self.weights.masters
        if settings.moments == "8bit" or weights.host:
            device = next(iter(weights.parameters.values())).device
            own = [{"names": names, "lr": rate, "weight_decay": decay} for (rate, decay), names in groups.items()]
            return ChunkedAdam(weights, own, settings, device)
        return torch.optim.AdamW(
            [{"params": [masters[name] for name in names], "lr": rate, "weight_decay": decay} for (rate, decay), names in groups.items()],
            betas=settings.betas,
            eps=settings.eps,
            fused=True if all(master.is_cuda for master in masters.values()) else None,
        )

    @property
    def has_moments(self) -> bool:
        """Whether AdamW's moments have been allocated: they are at the first step."""
        return bool(self._adam.state)

    @property
    def bytes_to_come(self) -> int:
        """The bytes that moments will still take on the device."""
        if self.has_moments:
            return 0
        if isinstance(self._adam, ChunkedAdam):
            return self._adam.bytes_to_come
        return sum(8 * held(master) for master in self.weights.masters.values())

    def norm(self) -> Tensor:
        """The norm of all gradients, on their device."""
        gradients = list(self.weights.gradients().values())
        device = next(iter(self.weights.parameters.values())).device
        return whole(torch.nn.utils.get_total_norm(gradients)) if gradients else torch.zeros((), device=device)

    def step(self, loss: float, progress: float = 0.0, known: tuple[Tensor, float] | None = None) -> Step:
        """Move the weights by the gradients on the masters, then clear them. `loss` is only checked to be finite. `known`: what `norm`
        gave, also as a number, if the caller has read it from the device."""
        self.look(self.weights)
        norm = self.norm() if known is None else known[0]
        size = float(norm) if known is None else known[1]
        factor = self.settings.factor(self.steps_taken, progress)
        lr = self.settings.lr * factor
        if self._decisions.skip(loss, size):
            self.weights.zero_grad()
            self._count_bad(loss, size)
            return Step(False, size, lr)
        if self.settings.clip is not None and size + 1e-6 > 0.999 * self.settings.clip:  # otherwise by a factor of 1
            self._clip(norm)
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._adam.step()
        self.weights.zero_grad()
        if not isinstance(self._adam, ChunkedAdam):  # which has done so chunk by chunk
            self.weights.publish()
        self.steps_taken += 1
        self.bad_in_a_row = 0
        return Step(True, size, lr)

    def _clip(self, norm: Tensor) -> None:
        if not self.weights.host:
            torch.nn.utils.clip_grads_with_norm_(list(self.weights.masters.values()), self.settings.clip, norm)
            return
        factor = torch.clamp(self.settings.clip / (norm + 1e-6), max=1.0)  # as torch's function, which reads gradients from weights
        for gradient in self.weights.gradients().values():
            gradient.mul_(factor.to(gradient.device))

    def _count_bad(self, loss: float, norm: float) -> None:
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= self.settings.max_bad_steps:
            raise TurnwiseError(
                f"{self.bad_in_a_row} optimiser steps in a row had a loss ({loss:g}) or a gradient norm ({norm:g}) that is not finite. "
                "The weights are those before these steps. Look for rewards that are not finite, lower the learning rate, or use float32"
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The moments by name, and plain numbers."""
        tensors: dict[str, Tensor] = {}
        for name, master in self.weights.masters.items():
            for kind, value in self._adam.state.get(name if isinstance(self._adam, ChunkedAdam) else master, {}).items():
                tensors[f"{name}/{kind}"] = value.detach()
        return tensors, {"steps_taken": self.steps_taken, "bad_in_a_row": self.bad_in_a_row}

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken."""
        known = {f"{name}/{kind}": (name, kind) for name in self.weights.masters for kind in KINDS}
        strange = set(tensors) - set(known)
        if strange:
            raise TurnwiseError(f"optimiser state: {sorted(strange)[0]!r} belongs to no weight of this model")
        by_weight: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, kind = known[key]
            by_weight.setdefault(name, {})[kind] = value
        if isinstance(self._adam, ChunkedAdam):
            self._adam.load(by_weight)
        else:
            self._load(by_weight)
        self.steps_taken, self.bad_in_a_row = int(numbers["steps_taken"]), int(numbers["bad_in_a_row"])

    def _load(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._adam.state.clear()
        for name, kind, value in ((name, kind, value) for name, own in tensors.items() for kind, value in own.items()):
            if kind not in ("step", *EXACT):
                raise TurnwiseError("optimiser state: its moments are stored in 8 bits: set learner.moments = '8bit', as it was saved with")
            master = self.weights.masters[name]
            device = master.device if kind != "step" or self._adam.defaults.get("fused") else torch.device("cpu")
            own = placed_like(value.detach(), master) if kind != "step" else value.detach()
            self._adam.state[master][kind] = own.to(device).clone()


def check_names(what: str, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raises an error if names or shapes differ; it names the first."""
    for name, tensor in wanted.items():
        if name not in given:
            raise TurnwiseError(f"{what}: {name!r} is missing. Is this a state of the same model, with the same adapters and critic?")
        if given[name].shape != tensor.shape:
            raise TurnwiseError(f"{what}: {name!r} has shape {tuple(given[name].shape)}, the model's has {tuple(tensor.shape)}")
    strange = set(given) - set(wanted)
    if strange:
        raise TurnwiseError(f"{what}: {sorted(strange)[0]!r} is not in the model. Is this a state of another model?")
