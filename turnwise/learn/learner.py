"""The learner: owns the weights and the optimiser, and turns advantages into steps.

    learner = Learner(model, LearnerSettings(...))
    batch = learner.annotate(batch)                  # only if credit needs values or rewards carry a KL penalty
    metrics = learner.update(batch, seed)            # the batch has advantages, as columns

Numpy goes in, plain numbers come out. No caller sees a device or a gradient, so the implementation can be replaced. An update depends
only on its arguments and the learner's state: the same seed gives the same weights, bitwise identical on a CPU. What happens inside an
update is in `update.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.agent.vision import Vision
from turnwise.data.batch import Batch
from turnwise.learn.activations import logit_chunk
from turnwise.learn.anchoring import engine_logprobs, placed
from turnwise.learn.chance import drawing_from
from turnwise.learn.decide import Decisions
from turnwise.learn.forward import PackedModel
from turnwise.learn.fourbit import has_packed
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.memory import Memory, lacks_room
from turnwise.learn.optimiser import Optimiser, Weights
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.pieces import begin, load_states, states_of, tell
from turnwise.learn.prepare import may_skip
from turnwise.learn.ranks.export import plain_model, plain_weights_of, trained_weights_of, write_sharded
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.ranks.sharding import Sharded
from turnwise.learn.ranks.shares import passes, restored
from turnwise.learn.reference import Reference
from turnwise.learn.saving import fingerprint, write_model
from turnwise.learn.seeing import SeeingModel
from turnwise.learn.sending import sent
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.streamed import is_streamed
from turnwise.learn.update import Update
from turnwise.learn.values import Critic
from turnwise.objectives.kl import reward_penalty
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive
from turnwise.util.threads import at_once

Column = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """The policy's numbers for packed tokens: log-prob and entropy of each, and the critic's values (one per turn or one per token)."""

    logprob: Column
    entropy: Column
    value: Column | None


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
        self.ranks = ranks if ranks is not None and ranks.sharded else None
        self.decisions = decisions or (Decisions() if self.ranks is None else Decisions(self.ranks.together))
        self.settings = settings or LearnerSettings()
        if self.ranks is not None:
            self.settings.check_sharded(has_packed(model))
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        dtype = getattr(torch, self.settings.dtype)
        for parameter in model.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():  # otherwise codes of a base in 4 bits
                parameter.data = parameter.data.to(dtype)
        self.model = model.to(self.device).eval()  # what is not trained may be too large for the device in float32
        adapted = hasattr(model, "disable_adapter")
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        exact = set(trained) if adapted else set()  # adapters are small and learn slowly: float32
        self.critic = self._make_critic()
        self.objective, self.correction = self.settings.loss.made(), self.settings.loss.made_correction()
        self.schedule = self.settings.made_schedule()
        if self.critic is not None:
            own = {f"critic.{name}": parameter for name, parameter in self.critic.named_parameters()}
            trained, exact = trained | own, exact | set(own)
        host = self.settings.optimiser.optimiser_place == "host"
        self.weights = Weights(trained.items(), dtype if self.ranks is None else torch.float32, exact, host)
        self.policy = self._packed_model(model, vision)
        half = None if adapted or self.ranks is None else dtype  # several processes keep float32, which they compute with in this dtype
        self.reference = Reference(self.policy, reference, half, self._reference_on_host()) if self.settings.needs_reference else None
        self._frozen = fingerprint(model) if self.ranks is not None else None  # of whole weights
        if self.ranks is not None:
            self._shard(self.ranks, dtype)
        self.optimiser = self._make_optimiser()
        self.distrusts = False  # whether it was said that the engine's log-probs are too far off
        self.skips = may_skip(self.settings) if self.settings.skip_zero_credit is not False else False
        self.skips = self.skips and (self.settings.skip_zero_credit is True or self.device.type == "cuda")
        self._automatic = self.settings.tokens_per_batch == 0
        twice = self.settings.gradient_checkpointing
        self.memory = Memory(self.policy, self.weights, None if twice is None else not twice)
        self.memory.piece = logit_chunk(self.settings.tokens_per_batch)
        self._look_at_memory()
        again = self.policy.fused is None and self.memory.must_recompute(self.settings.tokens_per_batch)
        if again if self.ranks is None else self.decisions.recompute(again):
            self.policy.recompute()

    def _packed_model(self, model: nn.Module, vision: Vision | None) -> PackedModel:
        if vision is None:
            return PackedModel(model, fused=None if self.ranks is None else False)
        if self.ranks is not None:
            raise TurnwiseError("a vision-language model is trained by one process: set cluster.learners = 1")
        return SeeingModel(model, vision)

    def _reference_on_host(self) -> bool:
        """Whether the reference's weights are in host memory: as the settings say, or if that leaves a GPU too little for the rest."""
        if self.settings.reference_place != "auto" or self.ranks is not None:
            return self.settings.reference_place == "host"
        return self.device.type == "cuda" and lacks_room(self.policy, self.weights, self.settings.optimiser)

    def _shard(self, ranks: Ranks, dtype: torch.dtype) -> None:
        """Keep a share of the weights only: the optimiser's parameters are from now on those of the share."""
        if self.reference is not None and not self.reference.shares_model:
            Sharded(self.reference.policy, ranks, dtype)
        Sharded(self.policy, ranks, dtype, self.critic)
        critic = self.critic.named_parameters() if self.critic is not None else ()
        named = {**dict(self.model.named_parameters()), **{f"critic.{name}": own for name, own in critic}}
        self.weights = Weights((name, named[name]) for name in self.weights.masters)

    def _look_at_memory(self) -> None:
        """Measure the free memory: it decides what a backward pass keeps and, if the settings leave it open, how large a batch is."""
        self.memory.look(self.optimiser)
        if self._automatic:
            self.settings = replace(self.settings, tokens_per_batch=self.decisions.tokens(self.memory.tokens()))

    def within_memory(self, work: Callable[[], T]) -> T:
        """Do the work. If memory runs out, do it again with half the tokens at a time, and keep that number."""
        tokens = self.settings.tokens_per_batch
        done, failed = self._tried(work)
        if not failed:
            return done[0]
        half = max(1, tokens // 2)
        self.settings, self._automatic = replace(self.settings, tokens_per_batch=half), False
        self.memory.room *= 0.75
        self.memory.retries += 1
        warnings.warn(f"out of memory with {tokens} tokens at once: continuing with {half} (learner.tokens_per_batch)", stacklevel=2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        done, failed = self._tried(work)
        if failed:
            raise TurnwiseError(
                f"out of memory with {half} tokens at once as well ({failed}). Set learner.tokens_per_batch lower or "
                "learner.gradient_checkpointing = true, give the engine less (engine.options.cache_memory), or use adapters"
            )
        return done[0]

    def reserve(self) -> None:
        """Take the memory of gradients before that of activations, if our own layers add them up."""
        if self.policy.fused is not None and self.policy.sharded is None:
            self.policy.fused.reserve()

    def _tried(self, work: Callable[[], T]) -> tuple[list[T], str]:
        """The result of the work, or the reason to repeat it: memory ran out here, or in another process of this learner."""
        try:
            done, failed = [work()], ""
        except torch.OutOfMemoryError as error:
            done, failed = [], str(error) or "no memory left"
        if not self.decisions.retry(bool(failed)):
            return done, ""
        self.weights.zero_grad()
        return [], failed or "in another process"

    def _make_critic(self) -> Critic | None:
        if self.settings.value is None:
            return None
        size: int = self.model.config.get_text_config().hidden_size
        critic: Critic = Critic(size, self.settings.value).to(self.device)
        return critic

    def _make_optimiser(self) -> Optimiser:
        value = self.settings.value
        own = {name: value.lr for name in self.weights.masters if name.startswith("critic.")} if value is not None else {}
        return Optimiser(self.weights, self.settings.optimiser, own, self.decisions)

    def everywhere(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of a whole step from those of this process's share."""
        if self.ranks is None:
            return metrics
        found: dict[str, float] = {}
        for own in self.ranks.gather(metrics):
            for name, value in own.items():
                known = found.get(name)
                found[name] = value if known is None else max(known, value) if name.endswith("_max") else known + value
        return found

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
        def one(part: Packed) -> tuple[Tensor, Tensor, Tensor | None]:
            return self.forward(policy, part, critic)

        def work() -> list[tuple[Tensor, Tensor, Tensor | None]]:
            tokens, kind = self.settings.tokens_per_batch, "score" if critic is None else "score with critic"
            workers = self.workers(policy) if critic is None else 1
            if workers == 1:
                return passes(policy, self.ranks, packed, tokens, kind, one, one)
            parts = microbatches(packed, np.arange(len(packed)), tokens)
            with ThreadPoolExecutor(workers) as pool:  # a tiny model leaves cores idle
                return list(pool.map(torch.no_grad()(lambda part: one(packed.take(part))), parts))

        with torch.no_grad(), self._mode(policy, training=False):
            parts = self.within_memory(work) if len(packed) else []
        logprobs, entropies, values = zip(*parts, strict=True) if parts else ((), (), ())
        own = {"logprob": _join(logprobs), "entropy": _join(entropies)}
        offsets = dict.fromkeys(own, packed.token_offsets)
        if critic is not None:
            own["value"] = _join(values)
            offsets["value"] = packed.turn_offsets if critic.settings.level == "turn" else packed.token_offsets
        found = restored(self.ranks, packed, own, offsets)
        return Scores(found["logprob"], found["entropy"], found.get("value"))

    def workers(self, policy: PackedModel) -> int:
        """How many threads compute micro-batches at the same time: a tiny model leaves cores idle. Our own layers draw no random numbers,
        so their order does not matter. Layers that come from host memory take turns in a place, so only one thread may compute."""
        alone = self.ranks is None and policy.fused is not None and self.device.type == "cpu" and not is_streamed(policy.causal)
        return at_once(torch.get_num_threads()) if alone else 1

    def forward(self, policy: PackedModel, part: Packed, critic: Critic | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs, entropies and values of a micro-batch. Only positions that predict a response token go through the output layer."""
        return policy.inside(lambda: self._forward(policy, part, critic))

    def _forward(self, policy: PackedModel, part: Packed, critic: Critic | None) -> tuple[Tensor, Tensor, Tensor | None]:
        source, target = (sent(x, policy.device) for x in (part.source, part.target))
        hidden = policy.hidden(part, source if critic is None else None)
        chosen = hidden if critic is None else hidden[source]
        rows = self.memory.rows_of_logits()
        keep, temperature = self.memory.keeps_slopes, self.settings.temperature
        logprob, entropy = token_logprobs(chosen, policy.head, target, temperature=temperature, entropy=True, chunk=rows, keep=keep)
        assert entropy is not None
        return logprob, entropy, None if critic is None else critic(hidden, part)

    @contextmanager
    def _mode(self, policy: PackedModel, training: bool) -> Iterator[None]:
        """The model in training mode or not, unless our own layers run it, for which both are the same."""
        before = policy.outer.training
        changes = training != before and policy.fused is None
        if changes:
            policy.outer.train(training)
        try:
            with policy.attention():
                yield
        finally:
            if changes:
                policy.outer.train(before)

    # -- before credit ------------------------------------------------------------------------------------------------------------

    def annotate(self, batch: Batch) -> Batch:
        """The batch with what only the learner knows: columns `turn.value` or `token.value` (with a critic), rewards that carry the KL
        penalty (with kl_reward_coef), and `token.old_logprob` and `token.ref_logprob`, which `update` then uses."""
        rollouts = batch.rollouts
        packed = pack(batch.trajectories, rollouts)
        rollouts.need("tokens", "Learner.annotate")
        if len(np.unique(packed.turn_row)) != len(rollouts):
            missing = int(np.setdiff1d(np.arange(len(rollouts)), packed.turn_row)[0])
            raise TurnwiseError(f"row {missing} of the batch: its turn has no prompt ids, so it cannot be valued")
        scores = self.score(packed)
        old = engine_logprobs(packed) if self.settings.old_logprobs == "engine" else scores.logprob
        columns: dict[str, Any] = {"token.old_logprob": placed(old, packed.index)}
        if self.reference is not None:
            ref = self.reference_logprobs(packed)
            columns["token.ref_logprob"] = placed(ref, packed.index)
            if self.settings.kl_reward_coef > 0:
                coef, kind, cap = self.settings.kl_reward_coef, self.settings.kl_reward, self.settings.kl_reward_cap
                columns["turn.reward"] = rollouts.reward + reward_penalty(old, ref, coef, kind, packed.turn, len(rollouts), cap)
        if scores.value is not None and self.settings.value is not None:
            level = self.settings.value.level
            columns[f"{level}.value"] = placed(scores.value, packed.turn_row if level == "turn" else packed.index)
        return batch.with_columns(columns)

    # -- the update ---------------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, seed: int = 0, *, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch: its advantages, and with a critic its targets, are columns of it. The schedule cuts it into optimiser steps.

        progress: the share of the run that is done, 0 to 1, for falling learning rates. Returns metrics: means over the optimiser steps,
        and the cost of the update.
        """
        self._look_at_memory()
        begin(self.objective, progress)
        begin(self.schedule, progress)
        metrics = Update(self, batch, seed, progress).run()
        tell(self.objective, metrics)
        tell(self.schedule, metrics)
        return metrics

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """The model in training mode with packed attention. Dropout draws from the seed alone, and other random numbers are not
        disturbed."""
        with ExitStack() as stack:
            rank = 0 if self.ranks is None else self.ranks.rank
            other = derive(seed, "rank", rank) if rank else seed  # other sequences, so other random numbers
            stack.enter_context(drawing_from(other % 2**63, self.device))
            stack.enter_context(self._mode(self.policy, training=True))
            yield

    # -- keeping ------------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to continue exactly here: tensors (copies, on the CPU) and plain numbers. With several processes, the tensors
        are the learner's own shares, which change with the next update."""
        moments, numbers = self.optimiser.state()
        groups = {"weights": self.weights.tensors(), "optimiser": moments, "reference": self.reference.tensors() if self.reference else {}}
        tensors = {f"{group}/{name}": self._kept(tensor) for group, own in groups.items() for name, tensor in own.items()}
        return tensors, {"optimiser": numbers, "frozen": self._fingerprint(), "pieces": states_of(self._pieces)}

    def like(self, name: str) -> Tensor | None:
        """A tensor that is sharded as the one of this name in `state()`; None if that is not sharded."""
        group, _, own = name.partition("/")
        if group == "reference" and self.reference is not None:
            return self.reference.tensors().get(own)
        master, _, kind = own.rpartition("/")
        found: Tensor | None = self.weights.masters.get(own if group == "weights" else "" if kind == "step" else master)
        return found

    def _fingerprint(self) -> str:
        return fingerprint(self.model) if self._frozen is None else self._frozen

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu", copy=True) if self.ranks is None else tensor.detach()

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. The learner must have been made with the same model and settings."""
        if numbers["frozen"] != self._fingerprint():
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
        load_states(self._pieces, numbers.get("pieces", {}))

    @property
    def _pieces(self) -> dict[str, tuple[str, Any]]:
        """What may have a state across updates: its kind, its name in the recipe, and the object."""
        return {"objective": (self.settings.loss.objective, self.objective), "schedule": (self.settings.schedule, self.schedule)}

    def make_reference(self) -> Reference:
        """A further frozen copy of the policy as it is now; with adapters, the model without them."""
        if self.ranks is None or hasattr(self.model, "disable_adapter"):
            return Reference(self.policy, host=self._reference_on_host())
        made = Reference(self.policy, plain_model(self.policy, self._dtype), self._dtype)
        Sharded(made.policy, self.ranks, self._dtype)
        return made

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.settings.dtype)
        return found

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
        model with adapters merged; with merged=False, the trained ones alone, under their names in `model`. With several processes, all
        of them take every weight. The tensors may be the learner's own: copy what must not change with the next update."""
        return plain_weights_of(self.policy, self._dtype) if merged else trained_weights_of(self.model, self._dtype)


def _join(parts: Sequence[Any]) -> Column:
    return torch.cat(list(parts)).float().cpu().numpy() if parts else np.zeros(0, np.float32)
