"""Micro-batches that several threads compute at the same time: every bit as if one had computed them one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from launching import python
from learn_cases import credited, tiny, trajectories
from native_models import one_thread_each
from torch import Tensor

from turnwise import credit
from turnwise.data.batch import Batch
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings, add_lora
from turnwise.learn.parallel import add_gradients
from turnwise.objectives import Loss

__all__ = ["one_thread_each"]  # a fixture
pytestmark = pytest.mark.usefixtures("one_thread_each")


def updated(monkeypatch: pytest.MonkeyPatch, kind: str, used: set[int]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The weights after two updates, and their metrics; `used` gets the threads that computed."""
    model = add_lora(tiny(), rank=4) if kind == "lora" else tiny()
    value = ValueSettings(level="turn") if kind == "critic" else None
    loss = Loss(kl_coef=0.1, entropy_coef=0.01)
    settings = LearnerSettings(
        optimiser=OptimiserSettings(lr=3e-3), minibatches=2, tokens_per_batch=24, loss=loss, value=value, aggregation="trajectory"
    )
    learner = Learner(model, settings)
    forward, metrics = learner._forward, []

    def noted(*given: Any) -> Any:
        used.add(threading.get_ident())
        time.sleep(0.002)
        return forward(*given)

    monkeypatch.setattr(learner, "_forward", noted)
    for seed in (3, 4):
        batch = learner.annotate(Batch.of(trajectories(seed)))
        targets = credit.assign("gae", batch.rollouts).targets if kind == "critic" else None
        metrics.append(learner.update(credited(batch, targets=targets), seed=seed))
    found = {f"{number}/{name}": value for number, own in enumerate(metrics) for name, value in own.items() if "seconds" not in name}
    return {name: tensor.clone() for name, tensor in learner.weights.tensors().items()}, found


@pytest.mark.parametrize("kind", ["whole", "lora", "critic"])
def test_an_update_by_several_threads_is_that_of_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    one, several = set[int](), set[int]()
    monkeypatch.setattr("turnwise.learn.parallel.at_once", lambda used: 1)
    plain, metrics = updated(monkeypatch, kind, one)
    monkeypatch.setattr("turnwise.learn.parallel.at_once", lambda used: 3)
    again, others = updated(monkeypatch, kind, several)
    assert all(torch.equal(plain[name], again[name]) for name in plain) and metrics == others
    assert one == {threading.get_ident()} and len(several) > 1 and threading.get_ident() not in several


def parts_of(count: int) -> tuple[list[Tensor], Callable[[Tensor], Tensor], list[Tensor]]:
    torch.manual_seed(0)
    weights = [torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True), torch.randn(3, requires_grad=True)]
    return [torch.randn(7, 4) for _ in range(count)], lambda x: torch.tanh(x @ weights[0].t() + weights[1]), weights


def test_gradients_are_added_in_order_to_those_that_are_there_and_losses_are_computed_in_order() -> None:
    parts, forward, weights = parts_of(9)
    for part in (parts[0], *parts):
        forward(part).square().sum().backward()
    wanted = [weight.grad for weight in weights]
    parts, forward, weights = parts_of(9)
    forward(parts[0]).square().sum().backward()
    order, ends = list[int](), list[int]()

    def late(part: Tensor) -> Tensor:
        number = next(number for number, own in enumerate(parts) if own is part)
        time.sleep(0.02 if number % 2 == 0 else 0)  # every other one overtakes the one before
        ends.append(number)
        return forward(part)

    def loss(part: Tensor, outputs: Tensor) -> tuple[Tensor, int]:
        order.append(next(number for number, own in enumerate(parts) if own is part))
        return outputs.square().sum(), order[-1]

    assert add_gradients(parts, 2, late, loss, weights) == order == list(range(9)) != ends
    assert weights[2].grad is None and wanted[2] is None
    for weight, known in zip(weights[:2], wanted[:2], strict=True):
        assert weight.grad is not None and known is not None and torch.equal(weight.grad, known)


@pytest.mark.parametrize("place", ["forward", "loss", "backward"])
@pytest.mark.parametrize("number", [0, 8])
def test_an_error_in_a_thread_is_raised_and_nothing_is_left_running(place: str, number: int) -> None:
    parts, forward, weights = parts_of(9)
    before, begun = threading.active_count(), list[int]()

    class Fails(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ZeroDivisionError(place)

    def own(part: Tensor) -> Tensor:
        begun.append(1)
        if part is parts[number] and place == "forward":
            raise ZeroDivisionError(place)
        return forward(part)

    def loss(part: Tensor, outputs: Tensor) -> tuple[Tensor, None]:
        if part is parts[number] and place == "loss":
            raise ZeroDivisionError(place)
        total = outputs.square().sum()
        return Fails.apply(total) if part is parts[number] and place == "backward" else total, None

    with pytest.raises(ZeroDivisionError, match=place):
        add_gradients(parts, 2, own, loss, weights)
    assert threading.active_count() == before and len(begun) <= number + 3


ROUNDS = """
import torch
from turnwise.learn.parallel import add_gradients

torch.set_num_threads(1)
for _ in range(50):
    first, second = (torch.randn(2, 2, requires_grad=True) for _ in range(2))
    parts = [torch.randn(2, 2) for _ in range(200)]
    found = add_gradients(parts, 1, lambda x: x @ first.t() + second.sum(), lambda x, y: (y.sum(), 1), [first, second])
    assert len(found) == 200 and first.grad is not None
print("done")
"""


def test_threads_never_wait_for_each_other() -> None:
    """A thread's forward pass begins when no graph holds the weights, and the main thread adds up gradients at the same time."""
    ran = python("-c", ROUNDS)
    assert ran.returncode == 0 and ran.stdout.strip() == "done", ran.stderr
