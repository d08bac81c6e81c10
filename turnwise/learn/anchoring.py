"""The log-probs that an update compares its own with: the old policy's, the engine's, the reference's.

The old policy's are those of the weights before the first step. If all steps are known and there is only one, the policy is still the old
one and its own log-probs are used. If the first step of a schedule refreshes them, the schedule takes over: each token's are then
computed when a step asks for it, at the latest when a step first uses the token.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints, ragged
from turnwise.learn.metrics import StepLog
from turnwise.learn.packing import Packed
from turnwise.learn.prepare import Mask, sample
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner

Column = NDArray[np.float32]


class Anchoring:
    """The log-probs of one update. `known` says for every packed token whether its old log-prob is known; None: all are, or a single step
    needs none."""

    def __init__(self, learner: Learner, log: StepLog):
        self.learner, self.log = learner, log
        self.known: Mask | None = None

    @property
    def settled(self) -> bool:
        """Whether no step computes old log-probs unless it asks for it."""
        return self.known is None or bool(self.known.all())

    def begin(self, packed: Packed, batch: Batch, needed: Mask, *, single: bool, refreshed: bool) -> Packed:
        """`packed` with old, engine and reference log-probs, if the loss needs them and they are not in the batch yet.

        needed: the sequences that will be computed. single: there is one step and no other. refreshed: the first step computes its own.
        """
        loss = self.learner.settings.loss
        if packed.engine_logprob is not None:
            packed = packed.with_columns(engine_logprob=packed.engine_logprob)
        elif "engine_logprob" in loss.needs or "token.logprob" in loss.reads:
            who = "the importance correction" if "engine_logprob" in loss.needs else f"objective {loss.objective!r}"
            raise TurnwiseError(f"{who} needs the engine's log-probs, and some turns carry none")
        packed = self._old(packed, batch, needed, single and "token.old_logprob" not in loss.reads, refreshed)
        if loss.kl_coef > 0 or "token.ref_logprob" in loss.reads:
            with self.log.phase("reference"):
                stored = batch.column("token.ref_logprob")[packed.index] if batch.has("token.ref_logprob") else None
                packed = packed.with_columns(ref_logprob=self.learner.reference_logprobs(packed) if stored is None else stored)
        return packed

    def _old(self, packed: Packed, batch: Batch, needed: Mask, single: bool, refreshed: bool) -> Packed:
        known = batch.has("token.old_logprob")  # by a pass of the learner's, so that `auto` has nothing to save
        if self._trusts_engine(packed, needed, single or refreshed or known):
            return packed.with_columns(old_logprob=engine_logprobs(packed))
        if known:
            return packed.with_columns(old_logprob=np.asarray(batch.column("token.old_logprob"))[packed.index])
        if single or not len(packed):
            return packed
        self.known = np.zeros(len(packed.source), np.bool_)
        packed = packed.with_columns(old_logprob=np.zeros(len(packed.source), np.float32))
        return packed if refreshed else self.refresh(packed, np.flatnonzero(needed))

    def refresh(self, packed: Packed, sequences: Ints) -> Packed:
        """`packed` with old log-probs of these sequences under the weights as they are now. In a single step these are its own."""
        if not len(sequences) or "old_logprob" not in packed.columns:
            return packed
        with self.log.phase("old_logprobs"):
            everything = np.array_equal(sequences, np.arange(len(packed)))
            scored = self.learner.logprobs(packed if everything else packed.take(sequences))
        places = ragged(packed.token_offsets, sequences)
        column = np.array(packed.columns["old_logprob"])
        column[places] = scored
        if self.known is not None:
            self.known[places] = True
        return packed.with_columns(old_logprob=column)

    def complete(self, packed: Packed, sequences: Ints) -> Packed:
        """`packed` with old log-probs of those of these sequences that have none yet."""
        if self.known is None:
            return packed
        owner = np.repeat(np.arange(len(packed)), np.diff(packed.token_offsets))
        missing = np.zeros(len(packed), np.bool_)
        missing[owner[~self.known]] = True
        return self.refresh(packed, np.sort(sequences[missing[sequences]]))

    def _trusts_engine(self, packed: Packed, needed: Mask, free: bool) -> bool:
        """Whether the ratio is anchored on the engine's log-probs. Their distance from ours is measured on one micro-batch, and logged.
        `free`: ours cost no pass over the batch, so there is no reason to take others."""
        settings, log, learner = self.learner.settings, self.log, self.learner
        how = settings.anchor(learner.device.type)
        if how == "learner" or (how == "auto" and (free or packed.engine_logprob is None)) or not len(packed):
            return False
        with log.phase("old_logprobs"):
            part = sample(packed, needed, settings.tokens_per_batch)
            gap = np.abs(learner.logprobs(part) - engine_logprobs(part))
        trusted = how == "engine" or learner.decisions.trust(is_near(gap, settings.engine_gap))
        if trusted:  # otherwise the loss measures the gap on all tokens
            log.add(engine_gap=float(gap.mean()), engine_gap_max=float(gap.max()))
        else:
            self._explain(gap)
        log.add(old_from_engine=float(trusted))
        return trusted

    def _explain(self, gap: Column) -> None:
        """Say once why a pass is made that `auto` could have saved."""
        if self.learner.distrusts:
            return
        self.learner.distrusts = True
        warnings.warn(
            f"the engine's log-probs differ from the learner's by {gap.mean():.3f} on average and by {gap.max():.3f} at most, which is too "
            f"much for old log-probs (the bound is {self.learner.settings.engine_gap:g}): the learner computes them in another "
            "pass, in every update in which this is so",
            stacklevel=2,
        )


def is_near(gap: Column, limit: float) -> bool:
    """Whether log-probs that differ by this much can stand for each other. The mean finds a difference everywhere; the root of the mean
    square finds a few tokens that differ a lot, as after another prompt or through other experts. Of noise it is 1.25 times the mean."""
    return bool(gap.mean() <= limit and np.sqrt(np.square(gap, dtype=np.float64).mean()) <= 2 * limit)


def engine_logprobs(packed: Packed) -> Column:
    """What the engine reported, or an error."""
    if packed.engine_logprob is None:
        raise TurnwiseError("some turns carry no log-probs of the engine, and old_logprobs='engine' needs them on every response token")
    return packed.engine_logprob.astype(np.float32)


def placed(values: Any, index: Any) -> NDArray[np.float64]:
    """A column in the batch's order from values in the packed one."""
    column = np.zeros(len(values))
    column[index] = values
    return column
