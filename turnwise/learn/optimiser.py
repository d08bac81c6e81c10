"""AdamW on the float32 masters of the weights (`weights.py`), with warm-up, learning-rate schedule and clipping.

`learner.lr` of a recipe is a field of `learn/sections.py:Optimiser`. `setup/build.py` makes `OptimiserSettings` of them, and a step's
rate is `lr` × `OptimiserSettings.factor(…)`, set in `Optimiser.step` below. With `host`, masters and moments are in host memory, and a step
brings them to the device in chunks (`chunked_adam.py`). Gradients stay on the device.

A step whose loss or gradient is not finite is skipped: the weights and the moments stay as they were. A few of them in a row end training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.learn.chunked_adam import MOMENTS, ChunkedAdam
from turnwise.learn.ranks.group import Decisions, held, is_sharded, placed_like, whole
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.weights import Weights
from turnwise.objectives.value import explained_variance
from turnwise.util.errors import TurnwiseError

MAX_BAD_STEPS = 3  # in a row: training stops with an error


@dataclass(frozen=True)
class Step:
    """The result of one optimiser step. `taken` is false if the loss or the gradient was not finite."""

    taken: bool
    grad_norm: float
    lr: float


class Optimiser:
    """AdamW over the masters of `weights`, with warm-up, learning-rate schedule and clipping."""

    def __init__(self, weights: Weights, settings: OptimiserSettings, decisions: Decisions | None = None):
        self.weights, self.settings, self._decisions = weights, settings, decisions or Decisions()
        self.look: Callable[[Weights], None] = lambda weights: None  # called with the gradients before every step, before clipping
        self.steps_taken = 0
        self.bad_in_a_row = 0
        if not weights.masters:
            raise TurnwiseError("the model has no weight that requires a gradient: nothing to train")
        groups: dict[float, list[str]] = {}  # by weight decay
        for name, master in weights.masters.items():
            groups.setdefault(settings.weight_decay if master.dim() > 1 else 0.0, []).append(name)
        self._adam = self._make(groups)

    def _make(self, groups: Mapping[float, list[str]]) -> Any:
        """torch's AdamW; our own in chunks if moments and masters are in host memory."""
        settings, weights, masters = self.settings, self.weights, self.weights.masters
        if weights.host:
            device = next(iter(weights.parameters.values())).device
            options = [{"names": names, "lr": settings.lr, "weight_decay": decay} for decay, names in groups.items()]
            return ChunkedAdam(weights, options, settings, device)
        return torch.optim.AdamW(
            [{"params": [masters[name] for name in names], "weight_decay": decay} for decay, names in groups.items()],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True if all(master.is_cuda for master in masters.values()) else None,
        )

    @property
    def bytes_to_come(self) -> int:
        """The bytes that moments will still take on the device."""
        if self._adam.state or self.weights.host:  # AdamW allocates them at the first step
            return 0
        return sum(8 * held(master) for master in self.weights.masters.values())

    def norm(self, also: Sequence[Tensor] = ()) -> Tensor:
        """The norm of all gradients and of those in `also`, which are not sharded, on their device."""
        gradients = list(self.weights.gradients().values())
        if gradients and is_sharded(gradients[0]):
            norms = [whole(torch.nn.utils.get_total_norm(gradients)), *(gradient.norm() for gradient in also)]
            return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        gradients += also
        device = next(iter(self.weights.parameters.values())).device
        return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=device)

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
        for group in self._adam.param_groups:
            group["lr"] = lr
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
        if self.bad_in_a_row >= MAX_BAD_STEPS:
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
        known = {f"{name}/{kind}": (name, kind) for name in self.weights.masters for kind in ("step", *MOMENTS)}
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
            self._adam.state.clear()
            for name, kind, value in ((name, kind, value) for name, own in by_weight.items() for kind, value in own.items()):
                master = self.weights.masters[name]
                device = master.device if kind != "step" or self._adam.defaults.get("fused") else torch.device("cpu")
                own = placed_like(value.detach(), master) if kind != "step" else value.detach()
                self._adam.state[master][kind] = own.to(device).clone()
        self.steps_taken, self.bad_in_a_row = int(numbers["steps_taken"]), int(numbers["bad_in_a_row"])


class StepLog:
    """Collects the metrics of optimiser steps, the seconds of phases and a few counts.

    Skipped steps are only counted: numbers that are not finite would hide all others.
    """

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []
        self._counts: dict[str, float] = {"steps": 0, "skipped_steps": 0, "stopped_early": 0}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside, under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def step(self, metrics: Mapping[str, float], step: Step) -> None:
        """An optimiser step, taken or skipped."""
        self._counts["steps" if step.taken else "skipped_steps"] += 1
        if step.taken:
            self._steps.append({**metrics, "grad_norm": step.grad_norm, "grad_norm_max": step.grad_norm, "lr": step.lr})

    def stopped(self, metrics: Mapping[str, float]) -> None:
        """The update ended before this step."""
        self._counts["stopped_early"] = 1
        self._counts["kl_at_stop"] = metrics["kl_old_k3"]

    def count(self, name: str) -> None:
        """One more of these."""
        self._counts[name] = self._counts.get(name, 0) + 1

    def add(self, **counts: float) -> None:
        """Further numbers of the whole update."""
        self._counts.update(counts)

    def summary(self, lr: float) -> dict[str, float]:
        """Means over the steps (the largest for names that end in `_max`), counts and seconds. `lr` is the value if no step was taken."""
        names = list(dict.fromkeys(name for step in self._steps for name in step))
        result: dict[str, float] = {"lr": lr}
        for name in names:
            values = [step[name] for step in self._steps if name in step]
            result[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        if "value_target" in result:
            result["explained_variance"] = sum(map(explained_variance, self._steps)) / len(self._steps)
        seconds = {f"seconds_{name}": value for name, value in self._seconds.items()}
        return result | self._counts | seconds
