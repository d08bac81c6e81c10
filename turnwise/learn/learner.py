"""The learner: owns the weights and the optimiser, and turns advantages into steps.

    learner = Learner(model, LearnerSettings(...))
    batch = learner.annotate(batch)                  # only if credit needs values or rewards carry a KL penalty
    metrics = learner.update(batch, seed)            # the batch has advantages, as columns

Numpy goes in, plain numbers come out. No caller sees a device or a gradient, so the implementation can be replaced. An update depends
only on its arguments and the learner's state: the same seed gives the same weights, bitwise identical on a CPU.

    update: pack the batch ─► the schedule's steps ─► for each: choose sequences and masks, fix weights, gradients by micro-batches, step

Weights of tokens are fixed for the whole step before it is cut into micro-batches (`minibatch.with_token_weights`), which is why the token
budget cannot change a gradient. An advantage meets the ratio in the objective, which `Learner._loss` calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.agent.vision import Vision
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Ints, ragged
from turnwise.learn.activations import logit_chunk
from turnwise.learn.auxiliary.critic import NAME as CRITIC
from turnwise.learn.auxiliary.critic import Critic, build_critic
from turnwise.learn.auxiliary.model import sum_gradients
from turnwise.learn.auxiliary.scorer import Reference, Scorer, computing
from turnwise.learn.checkpoint import AUXILIARY
from turnwise.learn.device import rng_scope, to_device
from turnwise.learn.forward import PackedModel, VisionModel, has_adapters
from turnwise.learn.hooks import Begins, Observes, Prepares, Steps, load_states, states_of
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.lora import has_packed
from turnwise.learn.memory import Budget, Memory, lacks_room, peak_memory
from turnwise.learn.minibatch import (
    EXTRA,
    REJECTED,
    Mask,
    keep_one,
    may_skip,
    prepared,
    sample,
    select,
    sequences_of,
    with_credit,
    with_overrides,
    with_prepared,
    with_token_weights,
    without_rejected,
    worth_reading,
)
from turnwise.learn.optimiser import Optimiser, StepLog
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.parallel import add_gradients, workers_for
from turnwise.learn.ranks.export import plain_model, plain_weights_of, trained_weights_of, write_sharded
from turnwise.learn.ranks.group import Decisions, Ranks
from turnwise.learn.ranks.sharding import Sharded, passes
from turnwise.learn.saving import fingerprint, write_model
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.weights import Weights
from turnwise.methods.steps import ScheduleView, Step
from turnwise.objectives.kl import reward_penalty
from turnwise.objectives.loss import combine
from turnwise.objectives.tokens import Tokens, check_split
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

Column = NDArray[np.float32]
Outputs = tuple[Tensor, Tensor | None, Tensor | None]  # of a micro-batch: log-probs and entropies, [response tokens], and values
POLICY, REFERENCE = "policy", "reference"  # as scorers and signals name them
NORM = "the norm of the gradient"
ENGINE_GAP = 0.03  # the mean distance from the learner's at which the engine's log-probs may still be the old ones
ADVICE = " or learner.gradient_checkpointing = true, give the engine less (engine.options.cache_memory), or use adapters"


@dataclass(frozen=True)
class Scores:
    """The policy's numbers for packed tokens: the log-prob of each, and the critic's values (one per turn or one per token)."""

    logprob: Column
    value: Column | None


@dataclass(frozen=True)
class MiniBatch:
    """The sequences of one optimiser step with the weights of their tokens; how many tokens and how many values count in the loss."""

    packed: Packed
    tokens: int
    values: int


@dataclass
class UpdateState:
    """One update in progress."""

    batch: Batch
    whole: Packed  # all sequences of the batch
    packed: Packed  # those that have something to learn from, with the columns of the loss
    progress: float  # the share of the run that is done
    log: StepLog
    steps: Steps
    needed: Mask = field(init=False)  # sequences of `packed` that have to be computed
    forced: Mask = field(init=False)  # of these, those without credit
    has_old: Mask | None = None  # tokens of `packed` whose old log-prob is known; None: all are, or a single step needs none
    prefetched: tuple[Step, MiniBatch | None] | None = None  # the next step, made while a GPU was busy with the one before

    @property
    def old_is_complete(self) -> bool:
        """Whether no step computes old log-probs unless it asks for it."""
        return self.has_old is None or bool(self.has_old.all())


class Learner:
    """Weights, optimiser, reference and critic of one policy. `model` is a causal LM of transformers, plain or wrapped by peft; with
    `vision`, its processor, a vision-language model. `decisions` are those that it takes jointly with other processes, and `ranks` are
    those processes, if they train this model together (`turnwise.learn.ranks`)."""

    def __init__(
        self,
        model: nn.Module,
        settings: LearnerSettings | None = None,
        device: str | torch.device | None = None,
        reference: nn.Module | None = None,
        vision: Vision | None = None,
        decisions: Decisions | None = None,
        ranks: Ranks | None = None,
    ):
        self.settings = settings = settings or LearnerSettings()
        self.ranks = ranks if ranks is not None and ranks.sharded else None
        self.decisions = decisions or Decisions(self.ranks)
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        for parameter in model.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():  # otherwise codes of a base in 4 bits
                parameter.data = parameter.data.to(self._dtype)
        self.model = model.to(self.device).eval()  # what is not trained may be too large for the device in float32
        adapted = has_adapters(model)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.objective, self.correction = settings.loss.made(), settings.loss.made_correction()
        self.schedule = settings.made_schedule()
        exact = set(trained) if adapted else set()  # adapters are small and learn slowly: float32
        host = settings.optimiser.optimiser_place == "host"
        self.weights = Weights(trained.items(), self._dtype if self.ranks is None else torch.float32, exact, host)
        self.policy = self._packed_model(model, vision)
        half = None if adapted or self.ranks is None else self._dtype  # several ranks keep float32, which they compute with in this dtype
        self.reference = Reference(self.policy, reference, half, self._reference_on_host()) if settings.needs_reference else None
        self._frozen = fingerprint(model) if self.ranks is not None else None  # of whole weights
        if self.ranks is not None:
            self._shard(self.ranks)
        self.critic: Critic | None = None
        self.optimiser = Optimiser(self.weights, settings.optimiser, self.decisions)
        self.distrusts_engine = False  # whether it was said that the engine's log-probs are too far off
        self.skips = settings.skip_zero_credit is not False and may_skip(settings)
        self.skips = self.skips and (settings.skip_zero_credit is True or self.device.type == "cuda")
        twice = settings.gradient_checkpointing
        self.memory = Memory(self.policy, self.weights, None if twice is None else not twice)
        self.memory.piece = logit_chunk(settings.tokens_per_batch)
        self.budget = Budget(self.memory, settings.tokens_per_batch, self._zero_grad, self.decisions, advice=ADVICE)
        if settings.value is not None:
            self.critic = build_critic(self.policy, settings, self.ranks, self.decisions, self.budget)
        self.budget.measure(self.optimiser)
        again = self.policy.fused is None and self.memory.must_recompute(self.budget.tokens)
        if again if self.ranks is None else self.decisions.recompute(again):
            self.policy.recompute()

    def _packed_model(self, model: nn.Module, vision: Vision | None) -> PackedModel:
        if vision is None:
            return PackedModel(model, fused=None if self.ranks is None else False)
        if self.ranks is not None:
            raise TurnwiseError("a vision-language model is trained by one process: set cluster.learners = 1")
        return VisionModel(model, vision)

    def _reference_on_host(self) -> bool:
        """Whether the reference's weights are in host memory: as the settings say, or if that leaves a GPU too little for the rest."""
        if self.settings.reference_place != "auto" or self.ranks is not None:
            return self.settings.reference_place == "host"
        return self.device.type == "cuda" and lacks_room(self.policy, self.weights, self.settings.optimiser)

    def _shard(self, ranks: Ranks) -> None:
        """Keep a share of the weights only: the optimiser's parameters are from now on those of the share."""
        if self.reference is not None and not self.reference.shares_model:
            Sharded(self.reference.policy, ranks, self._dtype)
        Sharded(self.policy, ranks, self._dtype)
        named = dict(self.model.named_parameters())
        self.weights = Weights((name, named[name]) for name in self.weights.masters)

    def _zero_grad(self) -> None:
        self.weights.zero_grad()
        if self.critic is not None:
            self.critic.weights.zero_grad()

    def reserve(self) -> None:
        """Allocate the gradient buffers before activations, if our own layers add gradients up."""
        if self.policy.fused is not None and self.policy.sharded is None:
            self.policy.fused.reserve()

    def everywhere(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of a whole step from those of this rank's share."""
        if self.ranks is None:
            return metrics
        totals: dict[str, float] = {}
        for share in self.ranks.gather(metrics):
            for name, value in share.items():
                total = totals.get(name)
                totals[name] = value if total is None else max(total, value) if name.endswith("_max") else total + value
        return totals

    # -- scoring ------------------------------------------------------------------------------------------------------------------

    def scorer(self, reference: Reference | None = None, tokenizer: Any = None) -> Scorer:
        """What scores with the policy's current weights, or with those of a frozen copy. Texts need a tokenizer."""
        shared: dict[str, Any] = {"temperature": self.settings.temperature, "ranks": self.ranks}
        if reference is not None:
            return Scorer(REFERENCE, reference.policy, tokenizer, self.budget, active=reference.active, **shared)
        return Scorer(POLICY, self.policy, tokenizer, self.budget, masters=self.weights.masters, **shared)

    def score(self, packed: Packed) -> Scores:
        """Log-probs and values under the current weights, in the order of `packed`."""
        if self.critic is None:
            return Scores(_float32(self.scorer().scores(packed, logprobs=True)["logprob"]), None)
        scores = self.critic.scores(packed, logprobs=True, heads=True)
        return Scores(_float32(scores["logprob"]), _float32(scores[CRITIC]))

    def logprobs(self, packed: Packed) -> Column:
        """Log-prob of every response token under the current weights, at the sampler's temperature."""
        return self.score(packed).logprob

    def reference_logprobs(self, packed: Packed) -> Column:
        """The same under the frozen reference."""
        if self.reference is None:
            raise TurnwiseError("this learner has no reference: set a KL coefficient (loss.kl_coef or kl_reward_coef)")
        return _float32(self.scorer(self.reference).scores(packed, logprobs=True)["logprob"])

    # -- before credit ------------------------------------------------------------------------------------------------------------

    def annotate(self, batch: Batch) -> Batch:
        """The batch with what only the learner knows: columns `turn.value` or `token.value` (with a critic), rewards that carry the KL
        penalty (with kl_reward_coef), and `token.old_logprob` and `token.ref_logprob`, which `update` then uses."""
        rollouts, settings = batch.rollouts, self.settings
        packed = pack(batch.trajectories, rollouts)
        rollouts.need("tokens", "Learner.annotate")
        if len(np.unique(packed.turn_row)) != len(rollouts):
            missing = int(np.setdiff1d(np.arange(len(rollouts)), packed.turn_row)[0])
            raise TurnwiseError(f"row {missing} of the batch: its turn has no prompt ids, so it cannot be valued")
        scores = self.score(packed)
        old = engine_logprobs(packed) if settings.old_logprobs == "engine" else scores.logprob
        columns: dict[str, Any] = {"token.old_logprob": in_batch_order(old, packed.index)}
        if self.reference is not None:
            ref = self.reference_logprobs(packed)
            columns["token.ref_logprob"] = in_batch_order(ref, packed.index)
            if settings.kl_reward_coef > 0:
                coef, kind = settings.kl_reward_coef, settings.kl_reward
                columns["turn.reward"] = rollouts.reward + reward_penalty(old, ref, coef, kind, packed.turn, len(rollouts))
        if scores.value is not None and settings.value is not None:
            index = packed.turn_row if settings.values_turns else packed.index
            columns[f"{settings.value.level}.value"] = in_batch_order(scores.value, index)
        return batch.with_columns(columns)

    # -- the update ---------------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, seed: int = 0, *, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch: its advantages, and with a critic its targets, are columns of it. The schedule cuts it into optimiser steps.

        progress: the share of the run that is done, 0 to 1, for falling learning rates. Returns metrics: means over the optimiser steps,
        and the cost of the update.
        """
        self.budget.measure(self.optimiser)
        user_objects: list[Any] = [self.objective, self.schedule]
        for user_object in user_objects:
            if isinstance(user_object, Begins):
                user_object.begin(progress)
        log = StepLog()
        with log.phase("pack"):
            state = self._begin_update(batch, seed, progress, log)
            step = state.steps.next()
            state.needed, state.forced = self._needed(state)
        refreshes = step is not None and "old_logprob" in step.refresh
        state.packed = self._with_logprobs(state, single=state.steps.count in (0, 1), refreshes=refreshes)
        with log.phase("update"), self.training(seed):
            while step is not None:
                metrics = self._step(state, step)
                if metrics is None:
                    state.steps.close()
                    break
                step = state.steps.next(metrics)
        metrics = self._summary(state)
        for user_object in user_objects:
            if isinstance(user_object, Observes):
                user_object.observe(dict(metrics))
        return metrics

    def _begin_update(self, batch: Batch, seed: int, progress: float, log: StepLog) -> UpdateState:
        whole = pack(batch.trajectories, batch.rollouts)
        packed = prepared(whole, batch, self.settings)

        def score() -> NDArray[np.float32]:
            """The log-prob of every token of the batch under the weights as they are now, in the batch's order."""
            return in_batch_order(self.logprobs(whole), whole.index).astype(np.float32)

        steps = self.schedule(ScheduleView(batch, sequences_of(packed), seed, score))
        return UpdateState(batch, whole, packed, progress, log, Steps(steps, self.settings.schedule))

    def _needed(self, state: UpdateState) -> tuple[Mask, Mask]:
        """The sequences that have to be computed: all, or those with credit and one of every step that is known; and which of them have no
        credit."""
        packed = state.packed
        if not self.skips:
            return np.ones(len(packed), np.bool_), np.zeros(len(packed), np.bool_)
        credit = with_credit(packed, packed.columns["in_loss"], self.settings.whole_trajectories)
        needed = credit.copy()
        for step in state.steps.known:
            if not any(name.endswith(".advantage") for name in step.columns):
                keep_one(needed, packed, select(packed, state.batch, step, self.settings.values_turns).sequences)
        keep_one(needed, packed, np.arange(len(needed)))
        return needed, needed & ~credit

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """The model in training mode with packed attention. Dropout draws from the seed alone, and other random numbers are not
        disturbed."""
        rank = 0 if self.ranks is None else self.ranks.rank
        other = derive(seed, "rank", rank) if rank else seed  # other sequences, so other random numbers
        with rng_scope(other % 2**63, self.device), computing(self.policy, training=True):
            yield

    def _step(self, state: UpdateState, step: Step) -> dict[str, float] | None:
        """One optimiser step, and its metrics; neither if the step has nothing to learn from. None ends the update: the policy has moved
        too far from the old one."""
        minibatch = self._minibatch(state, step)
        if minibatch is None:
            state.log.count("empty_steps")
            return {}
        parts = self.budget(lambda tokens: self._gradient(state.batch, minibatch, tokens))
        norm = self._gradient_norm()
        self._prefetch(state)
        numbers = _numbers({**combine(parts), NORM: norm})  # the only place at which the host waits for a GPU
        size = numbers.pop(NORM)
        metrics = self.everywhere(numbers)
        if self.decisions.stop(metrics["kl_old_k3"], self.settings.kl_stop, int(minibatch.packed.columns["in_loss"].sum())):
            self._zero_grad()
            state.log.stopped(metrics)
            return None
        taken = self.optimiser.step(metrics["loss"], state.progress, (norm, size))
        if self.critic is not None:
            self.critic.step(metrics["loss"], state.progress, (norm, size))
        state.log.step(metrics, taken)
        return {**metrics, "grad_norm": taken.grad_norm, "lr": taken.lr, "taken": float(taken.taken)}

    def _gradient_norm(self) -> Tensor:
        """Of the gradients of policy and critic together."""
        if self.critic is None:
            return self.optimiser.norm()
        if self.ranks is not None:
            sum_gradients(self.critic.weights, self.ranks)
        return self.optimiser.norm(also=list(self.critic.weights.gradients().values()))

    def _prefetch(self, state: UpdateState) -> None:
        """Make the next mini-batch while a GPU computes this step, which has only been issued to it: if it is known, and if nothing that
        this step changes has a part in it."""
        step, prepares = state.steps.coming, any(isinstance(part, Prepares) for part in (self.objective, self.correction))
        if isinstance(step, Step) and not step.refresh and state.old_is_complete and not prepares:
            state.prefetched = step, self._minibatch(state, step)

    def _minibatch(self, state: UpdateState, step: Step) -> MiniBatch | None:
        """The sequences of a step with old log-probs and weights. None: there is nothing to learn from, or the importance correction has
        rejected everything."""
        if state.prefetched is not None and state.prefetched[0] is step:
            return state.prefetched[1]
        settings, turns = self.settings, self.settings.values_turns
        packed = with_overrides(state.packed, state.batch, step.columns, settings.value, settings.loss.reads)
        chosen = select(packed, state.batch, step, turns)
        if not len(chosen.sequences):
            return None
        if "token.old_logprob" not in step.columns:
            packed = self._with_old_logprobs(state, packed, np.sort(chosen.sequences), again="old_logprob" in step.refresh)
        packed = packed.with_columns(in_loss=chosen.tokens).with_turn_columns(in_loss=chosen.turns)
        sequences = chosen.sequences
        packed = with_prepared(with_token_weights(packed.take(sequences), settings), self.correction)
        if REJECTED in packed.columns:
            packed = without_rejected(packed)
            left = worth_reading(packed, turns)
            if not len(left):
                return None
            packed, sequences = with_token_weights(packed.take(left), settings), sequences[left]
        in_loss = packed.columns["in_loss"]
        tokens, values = int(in_loss.sum()), int((packed.turn_columns["in_loss"] if turns else in_loss).sum())
        if self.critic is not None:
            packed = self.critic.kind.weighted(packed)
        packed = with_prepared(packed, self.objective)
        if self.skips:
            here = with_credit(packed, in_loss, settings.whole_trajectories) | state.forced[sequences]
            keep_one(here, packed, np.arange(len(packed)))
            packed = packed if here.all() else packed.take(np.flatnonzero(here))
            tokens = int(packed.columns["in_loss"].sum())
        return MiniBatch(packed, tokens, values)

    def _gradient(self, batch: Batch, minibatch: MiniBatch, tokens: int) -> list[dict[str, Tensor]]:
        """Gradients of a mini-batch, computed `tokens` at once, and the metrics of its micro-batches. With several ranks: those of this
        one's share."""
        packed, whole, seen = minibatch.packed, self.settings.whole_trajectories, list[Any]()

        def work(part: Packed) -> dict[str, Tensor]:
            seen.append(part.sequence_trajectory)
            if whole:
                check_split(seen, "trajectory")
            return self._backward(batch, minibatch, part)

        self.reserve()
        workers = workers_for(self.policy, self.ranks)
        if workers == 1:
            return passes(self.policy, self.ranks, packed, tokens, work, self._idle, whole)
        parts = [packed.take(part) for part in microbatches(packed, np.arange(len(packed)), tokens, whole)]
        if whole:
            check_split([part.sequence_trajectory for part in parts], "trajectory")
        weights = [*self.weights.parameters.values(), *(self.critic.weights.parameters.values() if self.critic is not None else ())]
        return add_gradients(parts, workers, self._outputs, lambda part, outputs: self._loss(batch, minibatch, part, outputs), weights)

    def _backward(self, batch: Batch, minibatch: MiniBatch, part: Packed) -> dict[str, Tensor]:
        """Gradients of one micro-batch, added to what is there; its metrics."""
        loss, metrics = self._loss(batch, minibatch, part, self._outputs(part))
        loss.backward()
        return metrics

    def forward(self, part: Packed) -> Outputs:
        """Log-probs, entropies and values of a micro-batch. Only positions that predict a response token go through the output layer."""
        return self.policy.inside(lambda: self._forward(part))

    def _forward(self, part: Packed) -> Outputs:
        policy, critic = self.policy, self.critic
        source_R, target_R = (to_device(x, policy.device) for x in (part.source, part.target))  # [response tokens]
        hidden_TH = policy.hidden(part, source_R if critic is None else None)  # with a critic, of all tokens
        states_RH = hidden_TH if critic is None else hidden_TH[source_R]
        logprob_R, entropy_R = token_logprobs(
            states_RH,
            policy.head,
            target_R,
            temperature=self.settings.temperature,
            entropy=True,
            chunk=self.memory.rows_of_logits(),
            keep=self.memory.caches_logit_gradients,
        )
        return logprob_R, entropy_R, None if critic is None else critic.values(hidden_TH, part)

    def _idle(self, part: Packed) -> None:
        """A pass whose gradients are 0."""
        logprob, _, value = self.forward(part)
        outputs = [output for output in (logprob, value) if output is not None]
        torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])

    def _outputs(self, part: Packed) -> Outputs:
        self.memory.prepare(len(part.ids), 0 if "entropy" in self.settings.loss.needs else len(part.source))
        return self.forward(part)

    def _loss(self, batch: Batch, minibatch: MiniBatch, part: Packed, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch, and its metrics. All tensors of `Tokens` have one entry per response token."""
        logprob, entropy, value = outputs
        columns = {name: to_device(column, logprob.device) for name, column in part.columns.items() if name != "in_loss"}
        tokens = Tokens(
            logprob=logprob,
            old_logprob=columns.get("old_logprob", logprob.detach()),
            advantage=columns["advantage"],
            turn=to_device(part.turn, logprob.device),
            trajectory=to_device(part.trajectory, logprob.device),
            weight=columns["weight"],
            engine_logprob=columns.get("engine_logprob"),
            ref_logprob=columns.get("ref_logprob"),
            entropy=entropy,
            extra={name.removeprefix(EXTRA): column for name, column in columns.items() if name.startswith(EXTRA)},
            batch_tokens=minibatch.tokens,
            turns=len(batch.rollouts),
            trajectories=len(batch.rollouts.trajectory_labels),
        )
        loss, metrics = self.settings.loss(tokens, self.objective, self.correction)
        if self.critic is not None and value is not None:
            value_loss, more = self.critic.kind.part_loss(value, part, minibatch.values)
            loss = loss + value_loss
            metrics = {**metrics, **more, "loss": loss.detach()}
        return loss, metrics

    def _summary(self, state: UpdateState) -> dict[str, float]:
        packed, log, settings = state.packed, state.log, self.optimiser.settings
        if not state.needed.all():
            log.add(skipped_sequences=int((~state.needed).sum()))
        in_loss = packed.columns["in_loss"]
        masked = len(state.whole.source) - int(in_loss.sum())
        if masked:
            log.add(masked_tokens=masked)
        turns = len(np.unique(packed.turn[in_loss]))
        log.add(tokens=int(in_loss.sum()), tokens_forward=len(packed.ids), sequences=len(packed), turns=turns)
        log.add(**peak_memory(self.device))
        return log.summary(settings.lr * settings.factor(self.optimiser.steps_taken, state.progress))

    # -- old, engine's and reference's log-probs ----------------------------------------------------------------------------------

    def _with_logprobs(self, state: UpdateState, *, single: bool, refreshes: bool) -> Packed:
        """The packed tokens with old, engine and reference log-probs, if the loss needs them and they are not in the batch yet.

        The old policy's are those of the weights before the first step. If all steps are known and there is only one (`single`), the policy
        is still the old one and its own log-probs are used. If the first step computes them again (`refreshes`), the schedule takes over:
        each token's are then computed when a step asks for it, at the latest when a step first uses the token.
        """
        loss, packed, batch = self.settings.loss, state.packed, state.batch
        if packed.engine_logprob is not None:
            packed = packed.with_columns(engine_logprob=packed.engine_logprob)
        elif "engine_logprob" in loss.needs or "token.logprob" in loss.reads:
            who = "the importance correction" if "engine_logprob" in loss.needs else f"objective {loss.objective!r}"
            raise TurnwiseError(f"{who} needs the engine's log-probs, and some turns carry none")
        single = single and "token.old_logprob" not in loss.reads
        in_batch = batch.has("token.old_logprob")  # by a pass of the learner's, so that `auto` has nothing to save
        if self._trusts_engine(packed, state, free=single or refreshes or in_batch):
            packed = packed.with_columns(old_logprob=engine_logprobs(packed))
        elif in_batch:
            packed = packed.with_columns(old_logprob=np.asarray(batch.column("token.old_logprob"))[packed.index])
        elif not single and len(packed):
            state.has_old = np.zeros(len(packed.source), np.bool_)
            packed = packed.with_columns(old_logprob=np.zeros(len(packed.source), np.float32))
            packed = packed if refreshes else self._refreshed(state, packed, np.flatnonzero(state.needed))
        if loss.kl_coef > 0 or "token.ref_logprob" in loss.reads:
            with state.log.phase("reference"):
                stored = batch.column("token.ref_logprob")[packed.index] if batch.has("token.ref_logprob") else None
                packed = packed.with_columns(ref_logprob=self.reference_logprobs(packed) if stored is None else stored)
        return packed

    def _with_old_logprobs(self, state: UpdateState, packed: Packed, sequences: Ints, again: bool) -> Packed:
        """`packed` with old log-probs of these sequences: of all of them (`again`), or of those that have none yet. The update remembers
        them for later steps."""
        if not again and state.has_old is None:
            return packed
        if not again:
            owner = np.repeat(np.arange(len(packed)), np.diff(packed.token_offsets))
            missing = np.zeros(len(packed), np.bool_)
            missing[owner[~state.has_old]] = True  # type: ignore[operator]
            sequences = sequences[missing[sequences]]
        packed = self._refreshed(state, packed, sequences)
        if "old_logprob" in packed.columns:
            state.packed = state.packed.with_columns(old_logprob=packed.columns["old_logprob"])
        return packed

    def _refreshed(self, state: UpdateState, packed: Packed, sequences: Ints) -> Packed:
        """`packed` with old log-probs of these sequences under the weights as they are now. In a single step these are its own."""
        if not len(sequences) or "old_logprob" not in packed.columns:
            return packed
        with state.log.phase("old_logprobs"):
            everything = np.array_equal(sequences, np.arange(len(packed)))
            scored = self.logprobs(packed if everything else packed.take(sequences))
        index = ragged(packed.token_offsets, sequences)
        column = np.array(packed.columns["old_logprob"])
        column[index] = scored
        if state.has_old is not None:
            state.has_old[index] = True
        return packed.with_columns(old_logprob=column)

    def _trusts_engine(self, packed: Packed, state: UpdateState, free: bool) -> bool:
        """Whether the engine's log-probs are the old ones. Their distance from ours is measured on one micro-batch, and logged. `free`:
        ours cost no pass over the batch, so there is no reason to take others."""
        settings, log = self.settings, state.log
        source = settings.old_logprobs_on(self.device.type)
        if source == "learner" or (source == "auto" and (free or packed.engine_logprob is None)) or not len(packed):
            return False
        with log.phase("old_logprobs"):
            part = sample(packed, state.needed, self.budget.tokens)
            gap = np.abs(self.logprobs(part) - engine_logprobs(part))
        trusted = source == "engine" or self.decisions.trust(is_near(gap, ENGINE_GAP))
        if trusted:  # otherwise the loss measures the gap on all tokens
            log.add(engine_gap=float(gap.mean()), engine_gap_max=float(gap.max()))
        elif not self.distrusts_engine:
            self.distrusts_engine = True  # say once why a pass is made that `auto` could have saved
            warnings.warn(
                f"the engine's log-probs differ from the learner's by {gap.mean():.3f} on average and by {gap.max():.3f} at most, which is "
                f"too much for old log-probs (at most {ENGINE_GAP:g} on average): the learner computes them in another pass, in every "
                "update in which this is so",
                stacklevel=4,
            )
        log.add(old_from_engine=float(trusted))
        return trusted

    # -- state --------------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to continue exactly here: tensors (copies, on the CPU) and plain numbers. With several ranks, the tensors are
        the learner's own shares, which change with the next update. The critic's are named as those of any auxiliary model."""
        moments, numbers = self.optimiser.state()
        groups = {"weights": self.weights.tensors(), "optimiser": moments, "reference": self.reference.tensors() if self.reference else {}}
        tensors = {
            f"{group}/{name}": tensor.to("cpu", copy=True) if self.ranks is None else tensor.detach()
            for group, members in groups.items()
            for name, tensor in members.items()
        }
        state = {"optimiser": numbers, "frozen": self._fingerprint(), "pieces": states_of(self._user_objects)}
        if self.critic is not None:
            critic, state[CRITIC] = self.critic.state()
            tensors |= {f"{AUXILIARY}{CRITIC}/{name}": tensor for name, tensor in critic.items()}
        return tensors, state

    def like(self, name: str) -> Tensor | None:
        """A tensor that is sharded as the one of this name in `state()`; None if that is not sharded."""
        group, _, key = name.partition("/")
        if group == "reference" and self.reference is not None:
            return self.reference.tensors().get(key)
        if group == "weights":
            return self.weights.masters.get(key)
        master, _, kind = key.rpartition("/")
        return None if kind == "step" else self.weights.masters.get(master)

    def _fingerprint(self) -> str:
        return fingerprint(self.model) if self._frozen is None else self._frozen

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. The learner must have been made with the same model and settings. Tensors of other auxiliary
        models may be among them, and are left alone."""
        if numbers["frozen"] != self._fingerprint():
            raise TurnwiseError(
                "the weights that are not trained differ from those of the saved state: it was made with another base model"
            )
        critic = f"{AUXILIARY}{CRITIC}"
        groups: dict[str, dict[str, Tensor]] = {"weights": {}, "optimiser": {}, "reference": {}, critic: {}}
        for name, tensor in tensors.items():
            group, _, key = name.partition("/")
            if group in groups:
                groups[group][key] = tensor
            elif not group.startswith(AUXILIARY):
                raise TurnwiseError(f"learner state: {name!r} belongs to none of {', '.join(groups)}")
        if (self.critic is not None) != (CRITIC in numbers):
            has, made = ("no", "without") if self.critic is not None else ("a", "with")
            raise TurnwiseError(f"the saved state has {has} critic: it was made {made} learner.value")
        self.weights.load(groups["weights"])
        self.optimiser.load_state(groups["optimiser"], numbers["optimiser"])
        if self.reference is not None:
            self.reference.load(groups["reference"])
        if self.critic is not None:
            self.critic.load_state(groups[critic], numbers[CRITIC])
        load_states(self._user_objects, numbers.get("pieces", {}))

    @property
    def _user_objects(self) -> dict[str, tuple[str, Any]]:
        """What may have a state across updates: its kind, its name in the recipe, and the object."""
        return {"objective": (self.settings.loss.objective, self.objective), "schedule": (self.settings.schedule, self.schedule)}

    def make_reference(self) -> Reference:
        """Another frozen copy of the policy as it is now; with adapters, the model without them."""
        if self.ranks is None or has_adapters(self.model):
            return Reference(self.policy, host=self._reference_on_host())
        reference = Reference(self.policy, plain_model(self.policy, self._dtype), self._dtype)
        Sharded(reference.policy, self.ranks, self._dtype)
        return reference

    def reset_reference(self) -> None:
        """From now on KL is measured against the current policy."""
        if self.reference is not None:
            self.reference.follow(self.policy)

    def save_model(self, folder: str | Path, merged: bool = True, tokenizer: Any = None) -> Path:
        """Write the model as a Hugging Face folder, atomically. Adapters are merged into it, or written alone with merged=False."""
        if self.ranks is not None:
            return write_sharded(self.policy, self.ranks, self._dtype, Path(folder), merged, tokenizer)
        if merged and has_packed(self.model):
            return write_model(plain_model(self.policy, self._dtype, device="cpu"), Path(folder), merged, tokenizer)
        return write_model(self.model, Path(folder), merged, tokenizer)

    def full_weights(self, merged: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Name and whole weight, in the order of the layers and in the dtype that the model computes in: those of a plain Hugging Face
        model with adapters merged; with merged=False, the trained ones alone, under their names in `model`. With several ranks, all of
        them take every weight. The tensors may be the learner's own: copy what must not change with the next update."""
        return plain_weights_of(self.policy, self._dtype) if merged else trained_weights_of(self.model, self._dtype)


def is_near(gap: Column, limit: float) -> bool:
    """Whether log-probs that differ by this much can stand for each other. The mean finds a difference everywhere; the root of the mean
    square finds a few tokens that differ a lot, as after another prompt or through other experts. Of noise it is 1.25 times the mean."""
    return bool(gap.mean() <= limit and np.sqrt(np.square(gap, dtype=np.float64).mean()) <= 2 * limit)


def engine_logprobs(packed: Packed) -> Column:
    """What the engine reported, or an error."""
    if packed.engine_logprob is None:
        raise TurnwiseError("some turns carry no log-probs of the engine, and old_logprobs='engine' needs them on every response token")
    return packed.engine_logprob.astype(np.float32)


def in_batch_order(values: Any, index: Any) -> NDArray[np.float64]:
    """A column in the batch's order from values in the packed one."""
    column = np.zeros(len(values))
    column[index] = values
    return column


def _float32(column: NDArray[Any]) -> Column:
    return column.astype(np.float32, copy=False)


def _numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Plain numbers, read from the device in one transfer."""
    return dict(zip(metrics, torch.stack([value.double() for value in metrics.values()]).tolist(), strict=True)) if metrics else {}
