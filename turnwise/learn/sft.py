"""A supervised warm start: raises the probability of an expert's responses.

The same packing, forward pass and weights as reinforcement learning; the loss is the mean of −log p over the expert's response tokens, at
temperature 1. It has a separate optimiser, so that the moments of imitation do not leak into what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn.device import to_device
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.optimiser import Optimiser, StepLog
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.ranks.sharding import passes
from turnwise.learn.sections import OptimiserSettings, SftSettings
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner

LOOK_EVERY = 10  # optimiser steps between two measurements


def as_trajectories(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[Trajectory]:
    """Each (prompt ids, response ids) pair as a trajectory of one turn."""
    return [
        Trajectory(group=number, id=number, turns=[Turn(anchor=number, prompt_ids=tuple(prompt), response_ids=tuple(response))])
        for number, (prompt, response) in enumerate(pairs)
    ]


def warm_start(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    settings: SftSettings | None = None,
    seed: int = 0,
    look: Callable[[], float] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Train the learner's model on the responses in `trajectories`. Metrics: the loss of the first and the last pass, and the cost.
    `look`, if given, measures from time to time which share of tasks the model wins; at `settings.until` training stops.
    `cancelled` is asked after every step.

    The learner's reference, if it has one, is the model from before; `learner.reset_reference()` moves it.
    """
    settings = settings or SftSettings()
    log = StepLog()
    with log.phase("pack"):
        packed = pack(trajectories)
        packed = packed.take(np.flatnonzero(np.diff(packed.token_offsets)))
    if len(packed) == 0:
        raise TurnwiseError("sft: the trajectories hold no response token to learn from")
    own = learner.settings.optimiser
    adam = OptimiserSettings(
        lr=settings.lr,
        schedule=settings.schedule,
        warmup=settings.warmup,
        weight_decay=own.weight_decay,
        eps=own.eps,
    )
    optimiser = Optimiser(learner.weights, adam, decisions=learner.decisions)
    losses: dict[int, list[tuple[float, int]]] = {}
    looks: list[float] = []
    with log.phase("update"):
        for epoch, progress, sequences in _schedule(packed, settings, seed):
            batch = packed.take(sequences)
            with learner.training(derive(seed, optimiser.steps_taken)):
                loss = _backward(learner, batch, settings.prompt_weight)
                log.step({"loss": loss}, optimiser.step(loss, progress))
            losses.setdefault(epoch, []).append((loss, len(batch.source)))
            if look is not None and optimiser.steps_taken % LOOK_EVERY == 0:
                looks.append(look())
                if looks[-1] >= (settings.until or 1.0):
                    break
            if cancelled():
                break
    log.add(tokens=len(packed.source), tokens_forward=len(packed.ids), sequences=len(packed), epochs=len(losses))
    log.add(loss_first=_mean(losses[0]), loss_last=_mean(losses[max(losses)]))
    if looks:
        log.add(looks=len(looks), success=looks[-1])
    return log.summary(settings.lr)


def _schedule(packed: Packed, settings: SftSettings, seed: int) -> Iterator[tuple[int, float, Any]]:
    """The batches as (pass, progress of the whole, sequences), each pass in a new order; the last one is cut when `steps` are reached."""
    taken = epoch = 0
    while taken < settings.steps if settings.steps is not None else epoch < settings.epochs:
        order = np.random.default_rng((seed % 2**63, epoch)).permutation(len(packed))
        batches = microbatches(packed, order, settings.batch_tokens)
        for number, sequences in enumerate(batches if settings.steps is None else batches[: settings.steps - taken]):
            yield epoch, (epoch + number / len(batches)) / settings.epochs if settings.steps is None else taken / settings.steps, sequences
            taken += 1
        epoch += 1


def _backward(learner: Learner, batch: Packed, prompt_weight: float) -> float:
    """Gradients of the mean −log p of a batch's responses, plus `prompt_weight` × that of its prompts, in parts that fit the learner's
    token budget. Returns the loss of the responses."""
    policy, never = learner.policy, learner.policy.never_sampled
    prompt_tokens = int(_prompt_places(batch, never).sum()) if prompt_weight > 0 else 0

    def losses(piece: Packed) -> tuple[Tensor, Tensor]:
        learner.memory.prepare(len(piece.ids))
        hidden = policy.hidden(piece)
        own = loss = _mean_loss(learner, hidden, piece, piece.source, len(batch.source))
        if prompt_weight > 0 and prompt_tokens > 0:
            places = np.flatnonzero(_prompt_places(piece, never))
            loss = own + prompt_weight * _mean_loss(learner, hidden, piece, places, prompt_tokens)
        return loss, own.detach()

    def work(piece: Packed) -> Tensor:
        loss, own = policy.inside(lambda: losses(piece))
        loss.backward()
        return own

    def idle(piece: Packed) -> None:
        policy.inside(lambda: losses(piece))[0].backward(torch.zeros((), device=learner.device))

    learner.reserve()
    parts = passes(policy, learner.ranks, batch, learner.budget.tokens, work, idle)
    return learner.everywhere({"loss": float(sum(parts, torch.zeros((), device=learner.device)))})["loss"]


def _prompt_places(packed: Packed, never: Sequence[int]) -> Any:
    """For each token whether the next one is a prompt token and is learned as such."""
    inside = np.ones(len(packed.ids), np.bool_)
    inside[packed.offsets[1:] - 1] = False  # nothing follows the last token of a sequence
    inside[packed.source] = False
    if never:  # image tokens stand for pixels, not for text to learn
        inside[:-1] &= ~np.isin(packed.ids[1:], never)
    if packed.unlearned is not None:  # random actions are read but not learned
        inside[:-1] &= ~packed.unlearned[1:]
    return inside


def _mean_loss(learner: Learner, hidden: Tensor, piece: Packed, source: Any, count: int) -> Tensor:
    """Sum of −log p of the tokens that follow the positions `source`, over `count`."""
    places, targets = (to_device(x, hidden.device) for x in (source, piece.ids[source + 1]))
    return -token_logprobs(hidden[places], learner.policy.head, targets)[0].sum() / count


def _mean(losses: Sequence[tuple[float, int]]) -> float:
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
