"""How many tokens are computed at once, and what is kept of them for the backward pass, depending on the free memory.

A backward pass needs what the forward pass computed. Keeping all of it is fastest and takes most memory; what is not kept is computed
again. The estimate counts bytes from the model's sizes and compares them with what the GPU has left once gradients and moments are there.
It decides separately for every micro-batch, so less is kept of a single long sequence than of a short one. On a CPU nothing is estimated:
the batch has a fixed size, and results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turnwise.learn.forward import PackedModel
from turnwise.learn.fused.stack import Kept
from turnwise.learn.logprobs import CHUNK_ELEMENTS
from turnwise.learn.optimiser import Optimiser, Weights
from turnwise.learn.ranks.tensors import held
from turnwise.learn.settings import OptimiserSettings

CPU_TOKENS = 8192
MOST_TOKENS = 32768  # larger products are not faster
SIZES = (MOST_TOKENS, 24576, 16384, 8192, 4096, 2048)
FEWEST_TOKENS = 1024
USABLE = 0.92  # of the free memory: an allocator cannot fill every gap


class Memory:
    """Estimates for one model. `room` are the bytes that activations may take; infinite if nothing is estimated."""

    def __init__(self, policy: PackedModel, weights: Weights, keep: bool | None):
        """`keep`: everything (true), nothing that can be computed again (false), or what the memory allows (None)."""
        self.policy, self.weights, self.keep = policy, weights, keep
        self.room = float("inf")
        self.others: Callable[[], int] = lambda: 0  # bytes that other models on this device will still allocate permanently

    def look(self, optimiser: Optimiser | None = None) -> None:
        """Find out how much memory is left for activations."""
        device = self.policy.device
        if device.type == "cuda":
            gathered = 0 if self.policy.sharded is None else self.policy.sharded.gathered_bytes
            self.room = USABLE * (free_bytes(device) - self._to_come(optimiser) - self._head_bytes() - self.others() - gathered)

    def tokens(self) -> int:
        """Tokens of a micro-batch: as many as are useful and fit with everything kept; if those are few, more with less kept."""
        if self.room == float("inf"):
            return CPU_TOKENS
        largest = next((size for size in SIZES if self._bytes(size, Kept()) <= self.room), FEWEST_TOKENS)
        again = next((size for size in SIZES if self._bytes(size, Kept(0, 0)) <= self.room), FEWEST_TOKENS)
        return largest if self.keep is True else again if self.keep is False else max(largest, min(again, MOST_TOKENS // 2))

    def plan(self, tokens: int) -> Kept:
        """What a micro-batch of this many tokens keeps: first attention, which is small, then the MLPs of as many layers as fit."""
        if self.keep is not None or self.room == float("inf"):
            return Kept() if self.keep is not False else Kept(0, 0)
        layers = self._config.num_hidden_layers
        for kept in (*(Kept(layers, n) for n in range(layers, -1, -1)), Kept(0, 0)):
            if self._bytes(tokens, kept) <= self.room:
                break
        return kept

    def prepare(self, tokens: int) -> None:
        """Tell the model's layers what to keep of the next micro-batch."""
        if self.policy.fused is not None:
            self.policy.fused.kept = self.plan(tokens)

    def must_recompute(self, tokens: int) -> bool:
        """Whether layers of transformers, which keep all or nothing, should keep nothing of a micro-batch of this many tokens."""
        if self.keep is not None or self.room == float("inf"):
            return self.keep is False
        sizes = self._config
        kept = sizes.num_hidden_layers * (36 * sizes.hidden_size + 10 * sizes.intermediate_size)  # several float32 copies of a norm's input
        return bool(tokens * kept > self.room)

    @property
    def _config(self) -> Any:
        return self.policy.causal.config.get_text_config()

    def _bytes(self, tokens: int, kept: Kept) -> float:
        """The peak memory of a micro-batch, in the fused layers and in half precision."""
        sizes = self._config
        layers, hidden, middle = sizes.num_hidden_layers, sizes.hidden_size, sizes.intermediate_size
        head = getattr(sizes, "head_dim", None) or hidden // sizes.num_attention_heads
        queries = sizes.num_attention_heads * head
        attention = 4 * queries + 4 * sizes.num_key_value_heads * head + 4 * sizes.num_attention_heads
        own = self.policy.fused.weights.layers if self.policy.fused is not None else []
        if any(layer.q_norm is not None for layer in own):  # heads are kept before their norms too
            attention += 2 * queries + 4 * sizes.num_key_value_heads * head
        if any(layer.experts is not None for layer in own):  # each token goes through several MLPs
            middle = sizes.num_experts_per_tok * sizes.moe_intermediate_size
        working = 8 * middle + 16 * hidden
        residuals = layers * (4 * hidden + 8)
        if any(layer.after_mlp is not None for layer in own):  # what is normed before it is added
            residuals *= 2
        inside = min(kept.attention, layers) * attention + min(kept.mlp, layers) * 4 * middle
        return float(tokens * (working + residuals + inside))

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
        """A chunk of logits with its gradient, and the output layer's gradient in float32 and in its final dtype."""
        weight = self.policy.head.weight
        trained: int = weight.numel() * (8 if weight.requires_grad else 0)
        return 8 * CHUNK_ELEMENTS["cuda"] + trained


def lacks_room(policy: PackedModel, weights: Weights, settings: OptimiserSettings) -> bool:
    """Whether a second copy of a model on its GPU would leave less than a quarter of it for activations and the engine's cache."""
    copied = sum(weight.numel() * weight.element_size() for weight in policy.causal.parameters())
    coming = sum(4 * held(master) for master in weights.masters.values()) + Optimiser(weights, settings).bytes_to_come
    free, total = free_bytes(policy.device), torch.cuda.mem_get_info(policy.device)[1]
    total = int(torch.cuda.get_per_process_memory_fraction(policy.device) * total)
    return bool(free - copied - coming < total / 4)


def free_bytes(device: torch.device) -> int:
    """What a process can still allocate: free on the device or cached by torch, within its share."""
    free, total = torch.cuda.mem_get_info(device)
    used, held = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    left: int = min(free + held - used, share - used)
    return left


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory, in GiB, that engine and learner had in use on the GPU since the last call. Empty on a CPU."""
    if device.type != "cuda":
        return {}
    used, held = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory_peak_gib": used / 2**30, "memory_held_gib": held / 2**30}
