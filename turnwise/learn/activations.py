"""What a backward pass keeps of its forward pass: bytes, and the choice that fits into the memory that is left. No torch.

    kept = what_to_keep(shape, tokens=8192, sampled=1024, room=12e9)
    kept.attention, kept.mlp, kept.logit_gradients

The learner decides with `what_to_keep` while it runs; the planner (`turnwise/planner/`) foresees its decisions with the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.learn.shapes import ModelShape

EVERY = 10**6  # layers: all of them
USABLE = 0.92  # of what is left for activations: an allocator cannot fill every gap
PAGES = int(0.15e9)  # bytes of the allocator's pages that are in use in part
MOST_TOKENS = 32768  # of a micro-batch: larger products are not faster
SIZES = (MOST_TOKENS, 24576, 16384, 8192, 4096, 2048)
FEWEST_TOKENS = 1024
FEW_TOKENS = 4096  # up to so many at once, logits are made in smaller chunks
LOGITS, FEW_LOGITS = 2**28, 2**26  # numbers of a chunk of logits on a GPU


@dataclass(frozen=True)
class Kept:
    """Layers, counted from the last, that keep what attention and MLP computed; and whether the gradients of the sampled tokens' log-probs
    by the logits are cached."""

    attention: int = EVERY
    mlp: int = EVERY
    logit_gradients: bool = False

    def of(self, left: int) -> tuple[bool, bool]:
        """Whether both halves of a layer (`fused/layers.py`) keep what they computed; `left` layers are left, it included."""
        return left <= self.attention, left <= self.mlp


NOTHING = Kept(0, 0)


def what_to_keep(shape: ModelShape, tokens: int, sampled: int, room: float, keep: bool | None = None) -> Kept:
    """What a micro-batch of so many tokens keeps in `room` bytes: first attention, which is small, then logit gradients, which save twice
    as much time per byte as an MLP does, then the MLPs of as many layers as fit. `keep`: the recipe wants all activations (true) or none;
    logit gradients are then cached only beside all of them. `sampled`: the tokens whose log-probs have gradients; 0 if their logit
    gradients cannot be cached."""
    if keep is False:
        return NOTHING
    if sampled:
        left = room - logit_gradient_bytes(shape, sampled)
        attention, mlp = layers_that_fit(shape, tokens, left)
        if attention and (keep is None or mlp == shape.layers):
            return Kept(logit_gradients=True) if keep else Kept(attention, mlp, logit_gradients=True)
    if keep:
        return Kept()
    return Kept(*layers_that_fit(shape, tokens, room))


def micro_batch_tokens(shape: ModelShape, room: float, keep: bool | None = None) -> int:
    """Tokens of a micro-batch: as many as are useful and fit with everything kept; if those are few, more with less kept."""
    largest = next((size for size in SIZES if peak_bytes(shape, size, Kept()) <= room), FEWEST_TOKENS)
    recomputing = next((size for size in SIZES if peak_bytes(shape, size, NOTHING) <= room), FEWEST_TOKENS)
    return largest if keep is True else recomputing if keep is False else max(largest, min(recomputing, MOST_TOKENS // 2))


def layers_that_fit(shape: ModelShape, tokens: int, room: float) -> tuple[int, int]:
    """Layers that keep attention and MLP of so many tokens."""
    layers = shape.layers
    for kept in (*((layers, number) for number in range(layers, -1, -1)), (0, 0)):
        if peak_bytes(shape, tokens, Kept(*kept)) <= room:
            break
    return kept


def transformers_layers_recompute(shape: ModelShape, tokens: int, room: float) -> bool:
    """Whether layers of transformers, which keep all or nothing, keep nothing of a micro-batch. A safe estimate: some families keep several
    float32 copies of a norm's input."""
    return tokens * (36 * shape.layers * shape.hidden + 10 * sum(shape.middles)) > room


def peak_bytes(shape: ModelShape, tokens: int, kept: Kept) -> int:
    """The peak of a micro-batch in the learner's own layers, in 16 bits."""
    return tokens * (backward_bytes(shape) + kept_bytes(shape, kept))


def kept_bytes(shape: ModelShape, kept: Kept, width: int = 2) -> int:
    """Bytes per token that the learner's own layers keep: the residual before each half, the scale of its norm, and what was asked for."""
    attention = width * (2 * shape.queries + 2 * shape.keys) + 4 * shape.heads
    if shape.head_norms:  # heads are kept before their norms too
        attention += width * (shape.queries + 2 * shape.keys)
    residuals = shape.layers * (4 if shape.wrapped else 2) * (width * shape.hidden + 4)
    inside = min(kept.attention, shape.layers) * attention + 2 * width * sum(last(shape.middles, kept.mlp))
    return residuals + shape.mixtures * routing_bytes(shape, width) + inside


def routing_bytes(shape: ModelShape, width: int) -> int:
    """Bytes per token of the probabilities of all experts, and of the chosen ones with their positions in the order of experts."""
    return 4 * shape.experts + (16 + width) * shape.active


def backward_bytes(shape: ModelShape) -> int:
    """Bytes per token of the backward pass of one half of a layer, in 16 bits."""
    return 8 * shape.middle + 16 * shape.hidden


def logit_gradient_bytes(shape: ModelShape, sampled: int, width: int = 2) -> int:
    """One number for each logit of these tokens, which saves the backward pass computing the logits again."""
    return width * shape.words * sampled


def joined_bytes(shape: ModelShape, width: int = 2) -> int:
    """The largest weight that is one product: gate and up, or query, key and value. Experts are not packed."""
    return width * shape.hidden * max(2 * shape.plain[1], shape.queries + 2 * shape.keys)


def logit_chunk(tokens: int) -> int:
    """Numbers of a chunk of logits if a recipe asks for so many tokens at once; 0: as many as fit."""
    return FEW_LOGITS if 0 < tokens <= FEW_TOKENS else LOGITS


def last(values: Sequence[int], count: int) -> Sequence[int]:
    """The last so many of them, or all if there are fewer."""
    return values[max(0, len(values) - count) :]
