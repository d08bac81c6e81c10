"""The learner: owns the weights and the optimiser, and turns credit into steps.

    learner = Learner(model, LearnerSettings(...))
    rollouts = learner.annotate(trajectories, rollouts)        # only where credit needs values or rewards carry a KL penalty
    metrics = learner.update(trajectories, rollouts, credit, seed)

Numpy goes in, plain numbers come out; nobody outside sees a batch, a device or a gradient, so the inside can be replaced. All that an
update does follows from its arguments and the learner's state: the same seed gives the same weights, bit by bit on a CPU.

An update packs the trajectories, cuts them into mini-batches (one optimiser step each) and those into micro-batches by tokens. Weights of
tokens are fixed for the whole mini-batch before it is cut, which is why the token budget cannot change a gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.agent.vision import Vision
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.learn.forward import PackedModel
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.memory import Memory, peak_memory
from turnwise.learn.metrics import StepLog
from turnwise.learn.optimiser import Optimiser, Weights
from turnwise.learn.packing import Packed, microbatches, minibatches, pack
from turnwise.learn.prepare import Mask, may_skip, needed_sequences, only_needed, sample
from turnwise.learn.reference import Reference
from turnwise.learn.saving import fingerprint, write_model
from turnwise.learn.seeing import SeeingModel
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.values import Critic, targets_in, with_value_targets
from turnwise.objectives.kl import reward_penalty
from turnwise.objectives.loss import combine
from turnwise.objectives.tokens import Tokens, check_split, token_weights
from turnwise.util.errors import TurnwiseError

Column = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """What the policy says about packed tokens: log-prob and entropy of each, and the critic's values (one a turn or one a token)."""

    logprob: Column
    entropy: Column
    value: Column | None


class Learner:
    """Weights, optimiser, reference and critic of one policy. `model` is a causal LM of transformers, plain or wrapped by peft; with
    `vision`, its processor, a vision-language model."""

    def __init__(
        self,
        model: nn.Module,
        settings: LearnerSettings | None = None,
        device: str | torch.device | None = None,
        reference: nn.Module | None = None,
        vision: Vision | None = None,
    ):
        self.settings = settings or LearnerSettings()
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.model = model.to(self.device).eval()
        dtype = getattr(torch, self.settings.dtype)
        adapted = hasattr(model, "disable_adapter")
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        exact = set(trained) if adapted else set()  # adapters are small and learn slowly: float32
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
        self.critic = self._make_critic()
        if self.critic is not None:
            own = {f"critic.{name}": parameter for name, parameter in self.critic.named_parameters()}
            trained, exact = trained | own, exact | set(own)
        self.weights = Weights(trained.items(), dtype, exact)
        self.policy = PackedModel(model) if vision is None else SeeingModel(model, vision)
        self.reference = Reference(self.policy, reference) if self.settings.needs_reference else None
        self.optimiser = self._make_optimiser()
        self._skips = may_skip(self.settings) if self.settings.skip_zero_credit is not False else False
        self._skips = self._skips and (self.settings.skip_zero_credit is True or self.device.type == "cuda")
        self._automatic = self.settings.tokens_per_batch == 0
        again = self.settings.gradient_checkpointing
        self.memory = Memory(self.policy, self.weights, None if again is None else not again)
        self._look_at_memory()
        if self.policy.fused is None and self.memory.must_recompute(self.settings.tokens_per_batch):
            self.policy.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def _look_at_memory(self) -> None:
        """How much is free now: it says what a backward pass keeps and, where the settings leave that open, how large a batch is."""
        self.memory.look(self.optimiser)
        if self._automatic:
            self.settings = replace(self.settings, tokens_per_batch=self.memory.tokens())

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Do the work; where it finds no memory, once more with half the tokens at a time, and so from then on."""
        tokens = self.settings.tokens_per_batch
        try:
            return work()
        except torch.OutOfMemoryError:
            self.weights.zero_grad()
        half = max(1, tokens // 2)
        self.settings, self._automatic = replace(self.settings, tokens_per_batch=half), False
        self.memory.room *= 0.75
        warnings.warn(f"out of memory with {tokens} tokens at once: going on with {half} (learner.tokens_per_batch)", stacklevel=2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            return work()
        except torch.OutOfMemoryError as error:
            self.weights.zero_grad()
            raise TurnwiseError(
                f"out of memory with {half} tokens at once as well ({error}). Set learner.tokens_per_batch lower or "
                "learner.gradient_checkpointing = true, give the engine less (engine.options.cache_memory), or use adapters"
            ) from error

    def _make_critic(self) -> Critic | None:
        if self.settings.value is None:
            return None
        size: int = self.model.config.get_text_config().hidden_size
        critic: Critic = Critic(size, self.settings.value).to(self.device)
        return critic

    def _make_optimiser(self) -> Optimiser:
        value = self.settings.value
        own = {name: value.lr for name in self.weights.masters if name.startswith("critic.")} if value is not None else {}
        return Optimiser(self.weights, self.settings.optimiser, own)

    # -- scoring ------------------------------------------------------------------------------------------------------------------

    def score(self, packed: Packed) -> Scores:
        """Log-probs, entropies and values under the current weights, in the order of `packed`."""
        return self._score(self.policy, packed, self.critic)

    def logprobs(self, packed: Packed) -> Column:
        """Log-prob of every response token under the current weights, at the sampler's temperature."""
        return self.score(packed).logprob

    def reference_logprobs(self, packed: Packed) -> Column:
        """The same under the frozen reference."""
        if self.reference is None:
            raise TurnwiseError("this learner has no reference: set a KL coefficient (loss.kl_coef or kl_reward_coef)")
        with self.reference.active():
            return self._score(self.reference.policy, packed, None).logprob

    def _score(self, policy: PackedModel, packed: Packed, critic: Critic | None) -> Scores:
        def work() -> list[tuple[Tensor, Tensor, Tensor | None]]:
            parts = microbatches(packed, np.arange(len(packed)), self.settings.tokens_per_batch)
            return [self._forward(policy, packed.take(part), critic) for part in parts]

        with torch.no_grad(), self._mode(policy, training=False):
            logprobs, entropies, values = zip(*self._within_memory(work), strict=True) if len(packed) else ((), (), ())
        return Scores(_join(logprobs), _join(entropies), _join(values) if critic is not None else None)

    def _forward(self, policy: PackedModel, part: Packed, critic: Critic | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs, entropies and values of a micro-batch. Only places that predict a response token go through the output layer."""
        source, target = (torch.as_tensor(x, device=policy.device) for x in (part.source, part.target))
        hidden = policy.hidden(part, source if critic is None else None)
        chosen = hidden if critic is None else hidden[source]
        logprob, entropy = token_logprobs(chosen, policy.head, target, temperature=self.settings.temperature, entropy=True)
        assert entropy is not None
        return logprob, entropy, None if critic is None else critic(hidden, part)

    @contextmanager
    def _mode(self, policy: PackedModel, training: bool) -> Iterator[None]:
        before = policy.outer.training
        policy.outer.train(training)
        try:
            with policy.attention():
                yield
        finally:
            policy.outer.train(before)

    # -- before credit ------------------------------------------------------------------------------------------------------------

    def annotate(self, trajectories: Sequence[Trajectory], rollouts: Rollouts) -> Rollouts:
        """The rollouts with what the learner alone knows: columns `value` or `token_value` (with a critic), rewards that carry the KL
        penalty (with kl_reward_coef), and the per-token columns `old_logprob` and `ref_logprob`, which `update` then uses."""
        packed = pack(trajectories, rollouts)
        rollouts.need("tokens", "Learner.annotate")
        if len(np.unique(packed.turn_row)) != len(rollouts):
            missing = int(np.setdiff1d(np.arange(len(rollouts)), packed.turn_row)[0])
            raise TurnwiseError(
                f"rollouts row {missing}: its turn is not among the trajectories, or has no prompt ids, so it cannot be valued"
            )
        scores = self.score(packed)
        old = self._engine_logprobs(packed) if self.settings.old_logprobs == "engine" else scores.logprob
        extra = {**rollouts.token_extra, "old_logprob": _placed(old, packed.index)}
        changes: dict[str, Any] = {}
        if self.reference is not None:
            ref = self.reference_logprobs(packed)
            extra["ref_logprob"] = _placed(ref, packed.index)
            if self.settings.kl_reward_coef > 0:
                coef, kind, cap = self.settings.kl_reward_coef, self.settings.kl_reward, self.settings.kl_reward_cap
                changes["reward"] = rollouts.reward + reward_penalty(old, ref, coef, kind, packed.turn, len(rollouts), cap)
        if scores.value is not None and self.settings.value is not None:
            name, place = ("value", packed.turn_row) if self.settings.value.level == "turn" else ("token_value", packed.index)
            changes[name] = _placed(scores.value, place)
        return replace(rollouts, **changes, token_extra=extra)

    def _engine_logprobs(self, packed: Packed) -> Column:
        if packed.engine_logprob is None:
            raise TurnwiseError("some turns carry no log-probs of the engine, and old_logprobs='engine' needs them on every response token")
        return packed.engine_logprob.astype(np.float32)

    # -- the update ---------------------------------------------------------------------------------------------------------------

    def update(
        self,
        trajectories: Sequence[Trajectory],
        rollouts: Rollouts,
        credit: Any,
        seed: int = 0,
        *,
        targets: Any = None,
        progress: float = 0.0,
    ) -> dict[str, float]:
        """Learn from these trajectories. `credit`: what `credit.assign` gave, or one number per turn in the order of the rollouts' rows.

        targets: what the critic should learn, in the same order; those of the credit unless given. progress: the share of the run that is
        behind, 0 to 1, for schedules that fall. Returns metrics: means over the optimiser steps, and what the update cost.
        """
        log = StepLog()
        self._look_at_memory()
        with log.phase("pack"):
            packed = self._prepared(trajectories, rollouts, credit, targets)
            batches = [part for epoch in range(self.settings.epochs) for part in self._minibatches(packed, (seed % 2**63, epoch))]
            needed = np.ones(len(packed), np.bool_)
            if self._skips:
                needed = needed_sequences(packed, batches, self.settings.loss.level == "trajectory")
        packed = self._with_logprobs(packed, needed, rollouts, log, steps=len(batches))
        with log.phase("update"), self.training(seed):
            for sequences in batches:
                if not self._step(packed.take(sequences), needed[sequences], rollouts, log, progress):
                    break
        if not needed.all():
            log.add(skipped_sequences=int((~needed).sum()))
        log.add(tokens=len(packed.source), tokens_forward=len(packed.ids), sequences=len(packed), turns=len(np.unique(packed.turn)))
        log.add(**peak_memory(self.device))
        return log.summary(self.optimiser.settings.lr * self.optimiser.settings.factor(self.optimiser.steps_taken, progress))

    def _prepared(self, trajectories: Sequence[Trajectory], rollouts: Rollouts, credit: Any, targets: Any) -> Packed:
        packed = pack(trajectories, rollouts)
        value = self.settings.value
        if value is not None:
            packed = with_value_targets(packed, rollouts, targets_in(credit, value) if targets is None else targets, value)
        if value is None or value.level == "token":  # prompts alone teach nothing
            packed = packed.take(np.flatnonzero(np.diff(packed.token_offsets)))
        return packed.with_columns(advantage=packed.per_token(credit, rollouts))

    def _minibatches(self, packed: Packed, seed: tuple[int, int]) -> list[NDArray[np.int64]]:
        settings = self.settings
        return minibatches(packed, settings.minibatch_unit, seed, size=settings.minibatch_size, steps=settings.minibatches)

    def _with_logprobs(self, packed: Packed, needed: Mask, rollouts: Rollouts, log: StepLog, steps: int) -> Packed:
        """`packed` with old, engine and reference log-probs, as far as the loss needs them and they are not in the rollouts yet."""
        known = rollouts.token_extra
        if packed.engine_logprob is not None:
            packed = packed.with_columns(engine_logprob=packed.engine_logprob)
        elif "engine_logprob" in self.settings.loss.needs:
            raise TurnwiseError("the importance correction needs the engine's log-probs, and some turns carry none")
        if self._trusts_engine(packed, needed, log, steps):
            packed = packed.with_columns(old_logprob=self._engine_logprobs(packed))
        elif "old_logprob" in known:
            packed = packed.with_columns(old_logprob=known["old_logprob"][packed.index])
        elif steps > 1:  # with a single step the policy is still the old one, and its own log-probs serve
            with log.phase("old_logprobs"):
                packed = packed.with_columns(old_logprob=only_needed(packed, needed, self.logprobs))
        if self.settings.loss.kl_coef > 0:
            with log.phase("reference"):
                stored = known["ref_logprob"][packed.index] if "ref_logprob" in known else self.reference_logprobs(packed)
                packed = packed.with_columns(ref_logprob=stored)
        return packed

    def _trusts_engine(self, packed: Packed, needed: Mask, log: StepLog, steps: int) -> bool:
        """Whether the ratio is anchored on the engine's log-probs. Their distance from ours is measured on one micro-batch, and logged."""
        how = self.settings.old_logprobs
        if how == "learner" or (how == "auto" and (steps < 2 or packed.engine_logprob is None)) or not len(packed):
            return False
        with log.phase("old_logprobs"):
            part = sample(packed, needed, self.settings.tokens_per_batch)
            gap = np.abs(self.logprobs(part) - self._engine_logprobs(part))
        trusted = how == "engine" or bool(gap.mean() <= self.settings.engine_gap)
        if trusted:  # otherwise the loss measures the gap on all tokens
            log.add(engine_gap=float(gap.mean()), engine_gap_max=float(gap.max()))
        log.add(old_from_engine=float(trusted))
        return trusted

    def _step(self, batch: Packed, needed: Mask, rollouts: Rollouts, log: StepLog, progress: float) -> bool:
        """One optimiser step. False ends the update: the policy has moved too far from the old one."""
        settings = self.settings
        weight = token_weights(batch.turn, batch.trajectory, settings.aggregation, settings.constant)
        batch = batch.with_columns(weight=weight.numpy())
        values = len(batch.turn_row) if settings.value is not None and settings.value.level == "turn" else len(batch.source)
        batch = batch if needed.all() else batch.take(np.flatnonzero(needed))
        counts = {"batch_tokens": len(batch.source), "turns": len(rollouts), "trajectories": len(rollouts.trajectory_labels)}
        metrics = _numbers(combine(self._within_memory(lambda: self._gradient(batch, counts, values))))
        if settings.kl_stop is not None and metrics["kl_old_k3"] > settings.kl_stop:
            self.weights.zero_grad()
            log.stopped(metrics)
            return False
        log.step(metrics, self.optimiser.step(metrics["loss"], progress))
        return True

    def _gradient(self, batch: Packed, counts: Mapping[str, int], values: int) -> list[dict[str, Tensor]]:
        """Gradients of a mini-batch, and the metrics of its micro-batches."""
        whole = self.settings.loss.level == "trajectory"
        parts = microbatches(batch, np.arange(len(batch)), self.settings.tokens_per_batch, whole)
        if whole:
            check_split([batch.sequence_trajectory[part] for part in parts], "trajectory")
        return [self._backward(batch.take(part), counts, values) for part in parts]

    def _backward(self, part: Packed, counts: Mapping[str, int], values: int) -> dict[str, Tensor]:
        """Gradients of one micro-batch, added to what is there; its metrics."""
        self.memory.prepare(len(part.ids))
        logprob, entropy, value = self._forward(self.policy, part, self.critic)
        columns = {name: torch.as_tensor(column, device=logprob.device) for name, column in part.columns.items()}
        tokens = Tokens(
            logprob=logprob,
            old_logprob=columns.get("old_logprob", logprob.detach()),
            advantage=columns["advantage"],
            turn=torch.as_tensor(part.turn, device=logprob.device),
            trajectory=torch.as_tensor(part.trajectory, device=logprob.device),
            weight=columns["weight"],
            engine_logprob=columns.get("engine_logprob"),
            ref_logprob=columns.get("ref_logprob"),
            entropy=entropy,
            batch_tokens=counts["batch_tokens"],
            turns=counts["turns"],
            trajectories=counts["trajectories"],
        )
        loss, metrics = self.settings.loss(tokens)
        if self.critic is not None and value is not None:
            extra, more = self.critic.loss(value, part, values)
            loss = loss + extra
            metrics = {**metrics, **more, "loss": loss.detach()}
        loss.backward()
        return metrics

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """The model in training mode with packed attention. Dropout draws from the seed alone, and what others draw is not disturbed."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
            torch.manual_seed(seed % 2**63)
            stack.enter_context(self._mode(self.policy, training=True))
            yield

    # -- keeping ------------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on exactly here: tensors (copies, on the CPU) and plain numbers."""
        moments, numbers = self.optimiser.state()
        groups = {"weights": self.weights.tensors(), "optimiser": moments, "reference": self.reference.tensors() if self.reference else {}}
        tensors = {f"{group}/{name}": tensor.to("cpu", copy=True) for group, own in groups.items() for name, tensor in own.items()}
        return tensors, {"optimiser": numbers, "frozen": fingerprint(self.model)}

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. The learner must have been made with the same model and settings."""
        if numbers["frozen"] != fingerprint(self.model):
            raise TurnwiseError(
                "the weights that are not trained differ from those of the saved state: it was made with another base model"
            )
        groups: dict[str, dict[str, Tensor]] = {"weights": {}, "optimiser": {}, "reference": {}}
        for name, tensor in tensors.items():
            group, _, own = name.partition("/")
            if group not in groups:
                raise TurnwiseError(f"learner state: {name!r} belongs to none of {', '.join(groups)}")
            groups[group][own] = tensor
        self.weights.load(groups["weights"])
        self.optimiser.load_state(groups["optimiser"], numbers["optimiser"])
        if self.reference is not None:
            self.reference.load(groups["reference"])

    def reset_reference(self) -> None:
        """From now on KL is measured against the policy as it is now."""
        if self.reference is not None:
            self.reference.follow(self.policy)

    def save_model(self, folder: str | Path, merged: bool = True, tokenizer: Any = None) -> Path:
        """Write the model as a Hugging Face folder, atomically. Adapters are merged into it, or written alone with merged=False."""
        return write_model(self.model, Path(folder), merged, tokenizer)


def _join(parts: Sequence[Any]) -> Column:
    return torch.cat(list(parts)).float().cpu().numpy() if parts else np.zeros(0, np.float32)


def _numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Plain numbers, read from the device in one go."""
    return dict(zip(metrics, torch.stack([value.double() for value in metrics.values()]).tolist(), strict=True))


def _placed(values: Any, index: Any) -> NDArray[np.float64]:
    """A column in the rollouts' order from values in the packed one."""
    column = np.zeros(len(values))
    column[index] = values
    return column
