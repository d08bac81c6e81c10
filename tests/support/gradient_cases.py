"""An objective that gives its gradient, and the comparison of gradients."""

from __future__ import annotations

from typing import Any

import torch
from learn_cases import gradients

from turnwise.data.batch import Batch
from turnwise.learn import Learner


class GradientOf:
    """Runs one update and keeps the gradient that the optimiser was given, instead of stepping."""

    def __init__(self, learner: Learner):
        self.found: list[dict[str, torch.Tensor]] = []
        self.learner = learner
        original = learner.optimiser.step

        def look(loss: float, progress: float = 0.0, known: Any = None) -> Any:
            self.found.append(gradients(learner.model))
            learner.weights.zero_grad()
            return original(loss, progress)

        learner.optimiser.step = look  # type: ignore[method-assign]

    def __call__(self, batch: Batch, **more: Any) -> dict[str, torch.Tensor]:
        self.metrics = self.learner.update(batch, **more)
        return self.found[-1]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], near: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    size = max(gradient.abs().max().item() for gradient in other.values())
    assert size > 1e-3
    for name, gradient in one.items():
        torch.testing.assert_close(
            gradient, other[name], rtol=near, atol=near * max(1.0, size), msg=lambda text, name=name: f"{name}: {text}"
        )
