"""The sizes for which steps with prompts are captured as CUDA graphs, and how a step is padded to one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnwise.engines.native.requests import Step
from turnwise.engines.native.staging import aligned
from turnwise.engines.native.weights import Weights
from turnwise.kernels.gpu import FEWEST_QUERIES

SIZES = (32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096)
FEWEST_TOKENS = 8  # per row, on average: a step of more and shorter rows takes a larger size
WORK = 2e12  # tokens × parameters: beyond this a GPU needs longer for the step than a host to issue its launches


@dataclass(frozen=True, slots=True)
class PromptSize:
    """A captured step: how many tokens it takes, how many of them one program attends from, the engine's number of slots, and how many
    padding tokens are a block, at most a page."""

    tokens: int
    block: int
    slots: int
    filler: int

    @property
    def rows(self) -> int:
        """How many rows may be in the step."""
        return max(1, min(self.slots, self.tokens // FEWEST_TOKENS))

    @property
    def blocks(self) -> int:
        """Every row may leave one block half empty, and so may the padding."""
        return self.tokens // min(self.block, self.filler) + self.rows + 1

    @property
    def pieces(self) -> tuple[int, ...]:
        """The lengths of tokens, positions, slots, blocks, ends of rows and their blocks."""
        return self.tokens, self.tokens, self.tokens, 4 * self.blocks, self.rows, 4 * self.rows

    @property
    def room(self) -> int:
        return sum(map(aligned, self.pieces))

    def pad(
        self, tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, ends: np.ndarray, step: Step, spare: int
    ) -> tuple[np.ndarray, ...]:
        """A step's pieces at this size. Padding tokens are blocks of the slot `spare`, each at the positions from 0 on."""
        empty = self.tokens - len(tokens)
        fill = np.arange(empty) % self.filler
        padding = np.arange(0, empty, self.filler)
        of_rows = row_blocks(step, ends, self.block)
        blocks = np.zeros((self.blocks, 4), dtype=np.int64)
        blocks[:, 0] = spare
        blocks[: len(of_rows)] = of_rows
        filled = blocks[len(of_rows) : len(of_rows) + len(padding)]
        filled[:, 1], filled[:, 3] = len(tokens) + padding, np.minimum(self.filler, empty - padding)
        drawn = len(step.drawing)
        last, last_blocks = np.zeros(self.rows, dtype=np.int64), np.ones((self.rows, 4), dtype=np.int64)
        last[:drawn], last_blocks[:drawn] = ends[step.drawing] - 1, end_blocks(step)
        last_blocks[drawn:, :3] = np.stack([np.full(self.rows, spare), np.arange(self.rows), np.zeros(self.rows)], axis=1)[drawn:]
        return (
            np.concatenate([tokens, np.zeros(empty, dtype=np.int64)]),
            np.concatenate([positions, fill]),
            np.concatenate([slots, np.full(empty, spare)]),
            blocks.ravel(),
            last,
            last_blocks.ravel(),
        )


def row_blocks(step: Step, ends: np.ndarray, size: int) -> np.ndarray:
    """The rows of a step in blocks of at most `size` tokens: slot, first token in the step, its position, number of tokens. `ends` is where
    each row ends in the step."""
    counts = np.array(step.counts)
    parts = -(-counts // size)
    of = np.arange(len(counts)).repeat(parts)
    done = (np.arange(len(of)) - (parts.cumsum() - parts)[of]) * size
    slots, computed = np.array([(row.slot, row.computed) for row in step.rows]).T
    return np.stack([slots[of], (ends - counts)[of] + done, computed[of] + done, np.minimum(size, counts[of] - done)], axis=1)


def end_blocks(step: Step) -> np.ndarray:
    """The last tokens of the rows that draw as blocks of one token each, as `row_blocks`, in a list of these tokens alone."""
    last = [(step.rows[i].slot, number, step.rows[i].computed + step.counts[i] - 1, 1) for number, i in enumerate(step.drawing)]
    return np.array(last, dtype=np.int64).reshape(-1, 4)


def prompt_sizes(weights: Weights) -> tuple[int, ...]:
    """The sizes that are worth capturing for a model: those where the host would be slower than the GPU."""
    shape = weights.shape
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    routers = sum(len(layer.experts.router) for layer in weights.layers if layer.experts is not None)
    parameters = shape.hidden * (shape.layers * attention + 3 * sum(_middles(weights)) + routers)  # those that a token goes through
    return tuple(size for size in SIZES if size * parameters <= WORK or size == SIZES[0])


def _middles(weights: Weights) -> list[int]:
    """Numbers inside the MLPs that a token goes through, layer by layer."""
    experts = (layer.experts for layer in weights.layers)
    return [weights.shape.middle if mixture is None else mixture.choices * mixture.down.shape[-1] for mixture in experts]


def block_for(longest: int) -> int:
    """How many tokens one program attends from, if that is the longest prompt of a step."""
    return 64 if longest > FEWEST_QUERIES else FEWEST_QUERIES


def prompt_size(sizes: tuple[int, ...], step: Step, slots: int, most: int) -> PromptSize | None:
    """The smallest size that takes a step; None if there is none. `most` is the largest number of padding tokens in a block."""
    block = block_for(max(step.counts))
    for size in sizes:
        candidate = PromptSize(size, block, slots, min(block, most))
        if size >= step.tokens and candidate.rows >= len(step.rows):
            return candidate
    return None


def capture_bytes(weights: Weights, slots: int) -> int:
    """The memory that captured steps hold on to: the activations of the largest one, and the logits of all rows. They share one pool, so
    the largest counts."""
    shape = weights.shape
    widest = max(3 * max(_middles(weights)), 2 * (shape.heads + shape.kv_heads) * shape.head_dim)
    tokens = max(prompt_sizes(weights)[-1], slots)
    return int(tokens * (4 * shape.hidden + widest) * weights.dtype.itemsize + slots * shape.vocabulary * 4)
