"""A supervised warm start: make the model likelier to say what an expert said.

The same packing, forward pass and weights as reinforcement learning; the loss is the mean of −log p over the expert's response tokens, at
temperature 1. It has an optimiser of its own, so the moments of imitation do not leak into what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnwise.errors import TurnwiseError
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.metrics import StepLog
from turnwise.learn.optimiser import Optimiser
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.settings import OptimiserSettings
from turnwise.rollouts import Trajectory, Turn

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner


@dataclass(frozen=True)
class SftSettings:
    """batch_tokens: tokens (prompts included) of an optimiser step. steps, where given, counts; otherwise `epochs` passes are made."""

    epochs: int = 1
    steps: int | None = None
    batch_tokens: int = 8192
    optimiser: OptimiserSettings = field(default_factory=lambda: OptimiserSettings(lr=1e-5))

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_tokens < 1 or (self.steps is not None and self.steps < 1):
            raise TurnwiseError(f"sft: epochs, batch_tokens and steps are at least 1, not {self}")


def as_trajectories(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[Trajectory]:
    """Each (prompt ids, response ids) pair as a trajectory of one turn."""
    return [
        Trajectory(group=number, id=number, turns=[Turn(anchor=number, prompt_ids=tuple(prompt), response_ids=tuple(response))])
        for number, (prompt, response) in enumerate(pairs)
    ]


def warm_start(
    learner: Learner, trajectories: Sequence[Trajectory], settings: SftSettings | None = None, seed: int = 0
) -> dict[str, float]:
    """Train the learner's model on the responses in `trajectories`. Metrics: the loss of the first and the last pass, and the cost.

    The learner's reference, where it has one, is the model from before; `learner.reset_reference()` moves it.
    """
    settings = settings or SftSettings()
    log = StepLog()
    with log.phase("pack"):
        packed = pack(trajectories)
        packed = packed.take(np.flatnonzero(np.diff(packed.token_offsets)))
    if len(packed) == 0:
        raise TurnwiseError("sft: the trajectories hold no response token to learn from")
    optimiser = Optimiser(learner.weights, settings.optimiser)
    losses: list[list[tuple[float, int]]] = []
    with log.phase("update"), learner.training(seed):
        for epoch, batches in enumerate(_schedule(packed, settings, seed)):
            losses.append([])
            for number, sequences in enumerate(batches):
                batch = packed.take(sequences)
                loss = float(_backward(learner, batch))
                progress = _progress(settings, optimiser.steps_taken, epoch, number, len(batches))
                log.step({"loss": loss}, optimiser.step(loss, progress))
                losses[-1].append((loss, len(batch.source)))
    log.add(tokens=len(packed.source), tokens_forward=len(packed.ids), sequences=len(packed), epochs=len(losses))
    log.add(loss_first=_mean(losses[0]), loss_last=_mean(losses[-1]))
    return log.summary(settings.optimiser.lr)


def _schedule(packed: Packed, settings: SftSettings, seed: int) -> Iterable[list[Any]]:
    """The batches of each pass, shuffled anew; the last pass is cut where `steps` are reached."""
    left = settings.steps
    epoch = 0
    while (left is None and epoch < settings.epochs) or (left is not None and left > 0):
        order = np.random.default_rng((seed % 2**63, epoch)).permutation(len(packed))
        batches = microbatches(packed, order, settings.batch_tokens)
        batches = batches if left is None else batches[:left]
        left = None if left is None else left - len(batches)
        epoch += 1
        yield batches


def _progress(settings: SftSettings, taken: int, epoch: int, number: int, batches: int) -> float:
    return taken / settings.steps if settings.steps is not None else (epoch + number / batches) / settings.epochs


def _backward(learner: Learner, batch: Packed) -> Tensor:
    """Gradients of the mean −log p of a batch, in parts that fit the learner's token budget."""
    total = torch.zeros((), device=learner.device)
    for part in microbatches(batch, np.arange(len(batch)), learner.settings.tokens_per_batch):
        piece = batch.take(part)
        hidden = learner.policy.hidden(piece)
        source, target = (torch.as_tensor(x, device=hidden.device) for x in (piece.source, piece.target))
        logprob, _ = token_logprobs(hidden[source], learner.policy.head, target)
        loss = -logprob.sum() / len(batch.source)
        loss.backward()
        total += loss.detach()
    return total


def _mean(losses: Sequence[tuple[float, int]]) -> float:
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
