"""How many tokens are computed at once, what is kept of them for the backward pass, and what happens if that was too much.

A backward pass needs what the forward pass computed. Kept all of it is fastest and takes most memory; what is not kept is computed
again. The estimate counts bytes from the model's sizes and compares them with what the GPU has left once gradients and moments are there.
It decides separately for every micro-batch, so less is kept of a single long sequence than of a short one. On a CPU nothing is estimated:
the batch has a fixed size, and results do not depend on the machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from turnwise.engines.native.memory import free_bytes
from turnwise.learn import activations
from turnwise.learn.activations import NOTHING, Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.logprobs import CHUNK_ELEMENTS
from turnwise.learn.lora import has_packed
from turnwise.learn.optimiser import Optimiser
from turnwise.learn.ranks.group import Decisions, held
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.shapes import NAMES, ModelShape, shape_from
from turnwise.learn.weights import Weights, buffer_of
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")
CPU_TOKENS = 8192


class Memory:
    """Estimates for one model. `room` are the bytes that activations may take; infinite if nothing is estimated."""

    def __init__(self, policy: PackedModel, weights: Weights, keep: bool | None):
        """`keep`: everything (true), nothing that can be computed again (false), or what the memory allows (None)."""
        self.policy, self.weights, self.keep = policy, weights, keep
        self.room = float("inf")
        self.caches_logit_gradients = False  # of the next micro-batch (`logprobs.py`)
        self.piece = CHUNK_ELEMENTS["cuda"]  # numbers of logits that exist at once on a GPU
        self.others: Callable[[], int] = lambda: 0  # bytes that other models on this device will still allocate permanently

    def look(self, optimiser: Optimiser | None = None) -> None:
        """Find out how much memory is left for activations."""
        device = self.policy.device
        if device.type == "cuda":
            gathered = 0 if self.policy.sharded is None else self.policy.sharded.gathered_bytes
            unpacked = activations.joined_bytes(self._shape) if has_packed(self.policy.causal) else 0
            later = self._to_come(optimiser) + self._head_bytes() + self.others() + gathered + unpacked
            self.room = activations.USABLE * (free_bytes(device) - later - activations.PAGES)

    def tokens(self) -> int:
        """Tokens of a micro-batch: as many as are useful and fit with everything kept; if those are few, more with less kept."""
        if self.room == float("inf"):
            return CPU_TOKENS
        return activations.micro_batch_tokens(self._shape, self.room, self.keep)

    def plan(self, tokens: int, rows: int = 0) -> Kept:
        """What a micro-batch of this many tokens keeps, of which so many rows may have their logit gradients cached."""
        if self.room == float("inf"):
            return NOTHING if self.keep is False else Kept()
        return activations.what_to_keep(self._shape, tokens, rows, self.room, self.keep)

    def prepare(self, tokens: int, rows: int = 0) -> None:
        """Tell the model's layers what to keep of the next micro-batch; and the output layer, if log-probs of so many rows have
        gradients, and nothing else that it gives."""
        self.caches_logit_gradients = False
        if self.policy.fused is None:
            return
        self.policy.fused.kept = kept = self.plan(tokens, rows if self.policy.sharded is None else 0)
        self.caches_logit_gradients = kept.logit_gradients

    def must_recompute(self, tokens: int) -> bool:
        """Whether layers of transformers, which keep all or nothing, should keep nothing of a micro-batch of this many tokens."""
        if self.keep is not None or self.room == float("inf"):
            return self.keep is False
        return activations.transformers_layers_recompute(self._shape, tokens, self.room)

    @property
    def _shape(self) -> ModelShape:
        config = self.policy.causal.config.get_text_config()
        return shape_from({name: getattr(config, name, None) for name in NAMES}, "policy")

    def _to_come(self, optimiser: Optimiser | None) -> int:
        """Bytes of gradients and moments that are not allocated yet."""
        count: int = sum(held(master) for master in self.weights.masters.values())
        gradients = 0 if self.weights.gradients() else 4 * count
        return gradients + self.moments_to_come(optimiser)

    def moments_to_come(self, optimiser: Optimiser | None) -> int:
        """Bytes of the optimiser's moments alone: unlike gradients, which are freed after each step, they stay."""
        if optimiser is not None:
            return optimiser.bytes_to_come
        return sum(8 * held(master) for master in self.weights.masters.values())

    def _head_bytes(self) -> int:
        """A chunk of logits with its gradient, and the output layer's gradient if it is made apart from where it is added up."""
        weight = self.policy.head.weight
        apart = weight.requires_grad and buffer_of(weight) is None
        return 8 * self.piece + (8 * weight.numel() if apart else 0)

    def rows_of_logits(self) -> int | None:
        """How many rows of logits are made at once; None: the usual number of the device."""
        weight = self.policy.head.weight
        return max(1, self.piece // weight.shape[0]) if weight.is_cuda else None


class Budget:
    """`tokens` are computed at once: the number that a recipe asks for (0: what memory allows), and half of it after running out of memory.
    Calling it with some work does the work, and once more with half the tokens if memory ran out on any rank."""

    def __init__(self, memory: Memory, asked: int, undo: Callable[[], None], decisions: Decisions | None = None, advice: str = ""):
        """`undo` clears what a failed pass has left behind; `advice` says what a user can do beside asking for fewer tokens."""
        self.memory, self._undo, self.decisions, self._advice = memory, undo, decisions or Decisions(), advice
        self._automatic, self.tokens = asked == 0, asked

    def measure(self, optimiser: Optimiser | None) -> None:
        """Find out how much memory is free. This decides what a backward pass keeps and, if the recipe does not say it, the tokens."""
        self.memory.look(optimiser)
        if self._automatic:
            self.tokens = self.decisions.tokens(self.memory.tokens())

    def __call__(self, work: Callable[[int], T]) -> T:
        """The result of `work(tokens)`. After running out of memory, the smaller number stays."""
        results, problem = self._attempt(work)
        if not problem:
            return results[0]
        tokens, self._automatic, self.tokens = self.tokens, False, max(1, self.tokens // 2)
        self.memory.room *= 0.75
        warnings.warn(f"out of memory with {tokens} tokens at once: continuing with {self.tokens} (learner.tokens_per_batch)", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        results, problem = self._attempt(work)
        if problem:
            raise TurnwiseError(
                f"out of memory with {self.tokens} tokens at once as well ({problem}). Set learner.tokens_per_batch lower{self._advice}"
            )
        return results[0]

    def _attempt(self, work: Callable[[int], T]) -> tuple[list[T], str]:
        """The result in a list, or nothing and the reason to repeat it: memory ran out here, or on another rank. The error itself is not
        kept: its frames hold the tensors that filled the memory."""
        try:
            results, problem = [work(self.tokens)], ""
        except torch.OutOfMemoryError as error:
            results, problem = [], str(error) or "no memory left"
        if not self.decisions.retry(bool(problem)):
            return results, ""
        self._undo()
        return [], problem or "on another rank"


def lacks_room(policy: PackedModel, weights: Weights, settings: OptimiserSettings) -> bool:
    """Whether a second copy of a model on its GPU would leave less than a quarter of it for activations and the engine's cache."""
    copied = sum(weight.numel() * weight.element_size() for weight in policy.causal.parameters())
    coming = sum(4 * held(master) for master in weights.masters.values()) + Optimiser(weights, settings).bytes_to_come
    free, total = free_bytes(policy.device), torch.cuda.mem_get_info(policy.device)[1]
    total = int(torch.cuda.get_per_process_memory_fraction(policy.device) * total)
    return bool(free - copied - coming < total / 4)


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory, in GiB, that engine and learner had in use on the GPU since the last call. Empty on a CPU."""
    if device.type != "cuda":
        return {}
    used, held = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory_peak_gib": used / 2**30, "memory_held_gib": held / 2**30}
