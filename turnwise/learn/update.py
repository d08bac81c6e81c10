"""One update: a schedule cuts a batch into optimiser steps.

    pack the batch ─► the schedule's steps ─► for each: choose sequences and masks, fix weights, gradients by micro-batches, step

Weights of tokens are fixed for the whole step before it is cut into micro-batches, which is why the token budget cannot change a
gradient. Tokens that a mask leaves out have weight 0: they are read as context and count nowhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.batch import Batch
from turnwise.learn.abreast import add_gradients
from turnwise.learn.anchoring import Anchoring, placed
from turnwise.learn.memory import peak_memory
from turnwise.learn.metrics import StepLog
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.prepare import Mask, keep_one, with_credit
from turnwise.learn.ranks.shares import passes
from turnwise.learn.selection import Selection, has_token, select, sequences_of, with_masks, worth_reading
from turnwise.learn.sending import sent
from turnwise.learn.spread import EXTRA, with_advantage, with_overrides, with_read, with_targets
from turnwise.methods.steps import ScheduleView, Step
from turnwise.objectives.loss import combine
from turnwise.objectives.tokens import Tokens, check_split, token_weights
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner


NORM = "the norm of the gradient"
REJECTED = f"{EXTRA}importance_rejected"  # prepared by an importance correction: tokens that leave the mini-batch and its denominators
Outputs = tuple[Tensor, Tensor, Tensor | None]  # log-probs, entropies and values
Made = tuple[Packed, int]  # the sequences of a step with their weights, and how many values count


class Update:
    """One update in progress. `progress`: the share of the run that is done."""

    def __init__(self, learner: Learner, batch: Batch, seed: int, progress: float):
        self.learner, self.batch, self.seed, self.progress = learner, batch, seed, progress
        self.settings, self.log = learner.settings, StepLog()
        self.anchoring = Anchoring(learner, self.log)
        self.ahead: tuple[Step, Made | None] | None = None  # the next step, made while a GPU was busy with the one before
        loss = self.settings.loss
        self.whole_trajectories = loss.level == "trajectory"
        self.turns_count = self.settings.value is not None and self.settings.value.level == "turn"
        with self.log.phase("pack"):
            self.whole = pack(batch.trajectories, batch.rollouts)
            self.packed = self._prepared()
            view = ScheduleView(batch, sequences_of(self.packed), seed, self.score)
            self.steps = Steps(learner.schedule(view), self.settings.schedule)

    def _prepared(self) -> Packed:
        """The batch's sequences with masks, advantages, critic targets and what the objective reads, without those that have nothing to
        learn from."""
        packed = with_masks(self.whole, self.batch)
        if self.settings.value is not None:
            packed = with_targets(packed, self.batch, self.settings.value)
        packed = packed.take(worth_reading(packed, self.turns_count))
        packed = with_advantage(packed, self.batch)
        return with_read(packed, self.batch, self.settings.loss.reads, f"objective {self.settings.loss.objective!r}")

    def score(self) -> NDArray[np.float32]:
        """The log-prob of every token of the batch under the weights as they are now, in the batch's order."""
        return placed(self.learner.logprobs(self.whole), self.whole.index).astype(np.float32)

    def run(self) -> dict[str, float]:
        """Take the steps. Returns metrics: means over the steps, and the cost of the update."""
        learner, log = self.learner, self.log
        with log.phase("pack"):
            first = self.steps.next()
            needed, self.forced = self._needed()
        refreshed = first is not None and "old_logprob" in first.refresh
        self.packed = self.anchoring.begin(self.packed, self.batch, needed, single=self.steps.count in (0, 1), refreshed=refreshed)
        with log.phase("update"), learner.training(self.seed):
            step = first
            while step is not None:
                metrics = self._step(step)
                if metrics is None:
                    self.steps.close()
                    break
                step = self.steps.next(metrics)
        return self._summary(needed)

    def _needed(self) -> tuple[Mask, Mask]:
        """The sequences that have to be computed: all, or those with credit and one of every step that is known; and which of them have no
        credit."""
        if not self.learner.skips:
            return np.ones(len(self.packed), np.bool_), np.zeros(len(self.packed), np.bool_)
        credit = with_credit(self.packed, self.packed.columns["kept"], self.whole_trajectories)
        needed = credit.copy()
        for step in self.steps.known:
            if not any(name.endswith(".advantage") for name in step.columns):
                keep_one(needed, self.packed, self._select(self.packed, step).sequences)
        keep_one(needed, self.packed, np.arange(len(needed)))
        return needed, needed & ~credit

    def _select(self, packed: Packed, step: Step) -> Selection:
        return select(packed, self.batch, step, self.turns_count)

    def _step(self, step: Step) -> dict[str, float] | None:
        """One optimiser step, and its metrics; neither if the step has nothing to learn from. None ends the update: the policy has moved
        too far from the old one."""
        learner, settings = self.learner, self.settings
        made = self._made(step)
        if made is None:
            self.log.count("empty_steps")
            return {}
        part, values = made
        found = learner.within_memory(lambda: self._gradient(part, values))
        norm = learner.optimiser.norm()
        self._look_ahead()
        numbers = _numbers({**combine(found), NORM: norm})  # the only place at which the host waits for a GPU
        size = numbers.pop(NORM)
        metrics = learner.everywhere(numbers)
        if learner.decisions.stop(metrics["kl_old_k3"], settings.kl_stop, int(part.columns["kept"].sum())):
            learner.weights.zero_grad()
            self.log.stopped(metrics)
            return None
        taken = learner.optimiser.step(metrics["loss"], self.progress, (norm, size))
        self.log.step(metrics, taken)
        return {**metrics, "grad_norm": taken.grad_norm, "lr": taken.lr, "taken": float(taken.taken)}

    def _look_ahead(self) -> None:
        """Make the next step while a GPU computes this one, which has only been issued to it: if it is known, and if nothing that this
        step changes has a part in it."""
        step, pieces = self.steps.coming, (self.learner.objective, self.learner.correction)
        if isinstance(step, Step) and not step.refresh and self.anchoring.settled and not any(hasattr(one, "prepare") for one in pieces):
            self.ahead = step, self._made(step)

    def _made(self, step: Step) -> Made | None:
        """The sequences of a step with old log-probs and weights. None: there is nothing to learn from."""
        if self.ahead is not None and self.ahead[0] is step:
            return self.ahead[1]
        settings = self.settings
        packed = with_overrides(self.packed, self.batch, step.columns, settings.value, settings.loss.reads)
        chosen = self._select(packed, step)
        if not len(chosen.sequences):
            return None
        if "token.old_logprob" not in step.columns:
            refreshed = self.anchoring.refresh if "old_logprob" in step.refresh else self.anchoring.complete
            packed = refreshed(packed, np.sort(chosen.sequences))
            if "old_logprob" in packed.columns:
                self.packed = self.packed.with_columns(old_logprob=packed.columns["old_logprob"])
        return self._weighted(packed, chosen)

    def _weighted(self, packed: Packed, chosen: Selection) -> Made | None:
        """The step's sequences with the weights of tokens and values, without those that need no computing. Also how many values
        count. None: the importance correction has rejected everything."""
        packed = packed.with_columns(kept=chosen.tokens).with_turn_columns(kept=chosen.turns)
        sequences = chosen.sequences
        batch = self._prepare(self.learner.correction, self._with_weights(packed.take(sequences)))
        if REJECTED in batch.columns:
            batch = _without_rejected(batch)
            left = worth_reading(batch, self.turns_count)
            if not len(left):
                return None
            batch, sequences = self._with_weights(batch.take(left)), sequences[left]
        kept = batch.columns["kept"]
        values = int((batch.turn_columns["kept"] if self.turns_count else kept).sum())
        if self.learner.critic is not None:
            batch = self.learner.critic.weighted(batch)
        batch = self._prepare(self.learner.objective, batch)
        if self.learner.skips:
            here = with_credit(batch, kept, self.whole_trajectories) | self.forced[sequences]
            keep_one(here, batch, np.arange(len(batch)))
            batch = batch if here.all() else batch.take(np.flatnonzero(here))
        return batch, values

    def _with_weights(self, batch: Packed) -> Packed:
        """The mini-batch with the weight of each token; those that do not count have none, and are in no denominator."""
        settings, mask = self.settings, torch.as_tensor(batch.columns["kept"])
        return batch.with_columns(
            weight=token_weights(batch.turn, batch.trajectory, settings.aggregation, settings.constant, mask=mask).numpy()
        )

    def _prepare(self, piece: Any, batch: Packed) -> Packed:
        """The mini-batch with the columns that the objective or the correction prepares for it, from all of its tokens at once."""
        if (prepare := getattr(piece, "prepare", None)) is None:
            return batch
        columns = {name.removeprefix(EXTRA): column for name, column in batch.columns.items() if name not in ("kept", "value_weight")}
        prepared = prepare(columns | {"turn": batch.turn, "trajectory": batch.trajectory})
        return batch.with_columns(**{f"{EXTRA}{name}": np.asarray(column) for name, column in (prepared or {}).items()})

    def _gradient(self, batch: Packed, values: int) -> list[dict[str, Tensor]]:
        """Gradients of a mini-batch, and the metrics of its micro-batches. With several processes: those of this one's share."""
        learner, seen = self.learner, list[Any]()
        tokens = int(batch.columns["kept"].sum())

        def work(part: Packed) -> dict[str, Tensor]:
            seen.append(part.sequence_trajectory)
            if self.whole_trajectories:
                check_split(seen, "trajectory")
            return self._backward(part, tokens, values)

        learner.reserve()
        if (workers := learner.workers(learner.policy)) > 1:
            parts = microbatches(batch, np.arange(len(batch)), learner.settings.tokens_per_batch, self.whole_trajectories)
            return self._abreast([batch.take(part) for part in parts], workers, tokens, values)
        return passes(
            learner.policy, learner.ranks, batch, learner.settings.tokens_per_batch, "update", work, self._idle, self.whole_trajectories
        )

    def _abreast(self, parts: list[Packed], workers: int, tokens: int, values: int) -> list[dict[str, Tensor]]:
        """The same by several threads."""
        if self.whole_trajectories:
            check_split([part.sequence_trajectory for part in parts], "trajectory")
        weights = list(self.learner.weights.parameters.values())
        return add_gradients(parts, workers, self._outputs, lambda part, outputs: self._loss(part, outputs, tokens, values), weights)

    def _idle(self, part: Packed) -> None:
        """A pass whose gradients are 0."""
        logprob, _, value = self.learner.forward(self.learner.policy, part, self.learner.critic)
        outputs = [output for output in (logprob, value) if output is not None]
        torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])

    def _backward(self, part: Packed, batch_tokens: int, values: int) -> dict[str, Tensor]:
        """Gradients of one micro-batch, added to what is there; its metrics."""
        loss, metrics = self._loss(part, self._outputs(part), batch_tokens, values)
        loss.backward()
        return metrics

    def _outputs(self, part: Packed) -> Outputs:
        learner = self.learner
        learner.memory.prepare(len(part.ids), 0 if "entropy" in self.settings.loss.needs else len(part.source))
        return learner.forward(learner.policy, part, learner.critic)

    def _loss(self, part: Packed, outputs: Outputs, batch_tokens: int, values: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch, and its metrics."""
        learner, rollouts = self.learner, self.batch.rollouts
        logprob, entropy, value = outputs
        columns = {name: sent(column, logprob.device) for name, column in part.columns.items() if name != "kept"}
        tokens = Tokens(
            logprob=logprob,
            old_logprob=columns.get("old_logprob", logprob.detach()),
            advantage=columns["advantage"],
            turn=sent(part.turn, logprob.device),
            trajectory=sent(part.trajectory, logprob.device),
            weight=columns["weight"],
            engine_logprob=columns.get("engine_logprob"),
            ref_logprob=columns.get("ref_logprob"),
            entropy=entropy,
            extra={name.removeprefix(EXTRA): column for name, column in columns.items() if name.startswith(EXTRA)},
            batch_tokens=batch_tokens,
            turns=len(rollouts),
            trajectories=len(rollouts.trajectory_labels),
        )
        loss, metrics = self.settings.loss(tokens, learner.objective, learner.correction)
        if learner.critic is not None and value is not None:
            extra, more = learner.critic.loss(value, part, values)
            loss = loss + extra
            metrics = {**metrics, **more, "loss": loss.detach()}
        return loss, metrics

    def _summary(self, needed: Mask) -> dict[str, float]:
        packed, log, optimiser = self.packed, self.log, self.learner.optimiser
        if not needed.all():
            log.add(skipped_sequences=int((~needed).sum()))
        kept = packed.columns["kept"]
        masked = len(self.whole.source) - int(kept.sum())
        if masked:
            log.add(masked_tokens=masked)
        turns = len(np.unique(packed.turn[kept]))
        log.add(tokens=int(kept.sum()), tokens_forward=len(packed.ids), sequences=len(packed), turns=turns)
        log.add(**peak_memory(self.learner.device))
        return log.summary(optimiser.settings.lr * optimiser.settings.factor(optimiser.steps_taken, self.progress))


def _without_rejected(batch: Packed) -> Packed:
    """The mini-batch in which rejected tokens do not count. Their column becomes the share of them, which is logged."""
    before = batch.columns["kept"]
    kept = before & ~batch.columns[REJECTED].astype(np.bool_)
    share = np.full(len(kept), 1 - kept.sum() / max(before.sum(), 1), np.float32)
    batch = batch.with_columns(**{"kept": kept, REJECTED: share})
    return batch.with_turn_columns(kept=batch.turn_columns["kept"] & has_token(batch, kept))


class Steps:
    """A schedule's steps, one after another. `known` are those that are known in advance, and `count` is their number; those of a
    generator are not known, and it receives the metrics of each step."""

    def __init__(self, given: Any, name: str):
        self._name = name
        self.known: list[Step] = list(given) if isinstance(given, Sequence) else []
        self.count = len(self.known) if isinstance(given, Sequence) else None
        self._taken = 0
        if not hasattr(given, "__iter__"):
            raise TurnwiseError(f"schedule {name!r} returned {type(given).__name__}: a list or a generator of Step(…) is needed")
        self._steps: Iterator[Any] = iter(given)

    @property
    def coming(self) -> Step | None:
        """The step that `next` will give, if it is known."""
        return self.known[self._taken] if self._taken < len(self.known) else None

    def next(self, metrics: Mapping[str, float] | None = None) -> Step | None:
        """The next step; None after the last. `metrics` are those of the step before."""
        try:
            step = self._steps.send(dict(metrics)) if metrics is not None and self._hears() else next(self._steps)  # type: ignore[attr-defined]
        except StopIteration:
            return None
        self._taken += 1
        if not isinstance(step, Step):
            raise TurnwiseError(f"schedule {self._name!r} gave {type(step).__name__} as a step: Step(…) is needed")
        return step

    def _hears(self) -> bool:
        """Whether a generator waits at a `yield` of its own, and not inside `yield from` a list, which takes no metrics."""
        inner: Any = self._steps
        while getattr(inner, "gi_yieldfrom", None) is not None:
            inner = inner.gi_yieldfrom
        return hasattr(inner, "send")

    def close(self) -> None:
        """No further step will be taken."""
        if isinstance(self._steps, Generator):
            self._steps.close()


def _numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Plain numbers, read from the device in one transfer."""
    return dict(zip(metrics, torch.stack([value.double() for value in metrics.values()]).tolist(), strict=True)) if metrics else {}
