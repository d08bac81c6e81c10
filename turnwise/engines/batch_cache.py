"""The key/value cache of a running batch of the transformers engine: rows leave, join, and continue where they were.

The cache is the model's own (`DynamicCache`), one row per request. Rows are aligned to the right: row i of a cache with `width` columns
holds its tokens in the last `lengths[i]` columns, and what comes before them is padding that the attention mask hides. Leaving is an
index; joining pads the shorter side on the left; columns that are padding in every row are cut off.

Layers with plain or sliding-window attention can join, since their cache is a list of columns. Others (linear attention, state spaces)
hold a state that is bound to the batch it was computed in: such rows can leave but not join, and new ones wait for their turn. For a
model with a custom cache nothing is assumed: when a row leaves, the others are recomputed. Reuse of a prefix needs plain attention in
every layer: a window has forgotten what a shorter prefix would need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

COLUMNS = 2  # of keys and values: [rows, heads, columns, size]


@dataclass(slots=True)
class Prefix:
    """What one row has computed: its tokens and, layer by layer, their keys and values [1, heads, tokens, size]."""

    ids: Sequence[int]
    layers: list[tuple[Tensor, Tensor]]

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` has in common with this prefix, at most all but its last one, which must be computed to draw the next
        one."""
        limit = min(len(self.ids), len(ids) - 1)
        if list(self.ids[:limit]) == list(ids[:limit]):
            return limit
        for place in range(limit):
            if self.ids[place] != ids[place]:
                return place
        return limit


class StateCache(DynamicCache):  # type: ignore[misc]
    """A cache without any attention layer. Models ask their cache for its length, which layers that hold a state do not know."""

    length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0


def empty_cache(config: Any) -> StateCache | None:
    """The cache that a model must be given at first; None if it makes one that works."""
    text = config.get_text_config(decoder=True)
    if not (getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)):
        return None
    cache = StateCache(config=config)
    return None if not cache.layers or any(isinstance(layer, CacheLayerMixin) for layer in cache.layers) else cache


class BatchCache:
    """A cache with the lengths of its rows and its width: the number of its columns."""

    def __init__(self, cache: Any, lengths: Sequence[int], width: int):
        self.cache = cache
        self.lengths = list(lengths)
        self.width = width

    @property
    def leaves(self) -> bool:
        """Whether rows can leave while the others stay."""
        return type(self.cache) in (DynamicCache, StateCache)  # exactly these: a model's custom cache may hold more than its layers

    @property
    def joins(self) -> bool:
        """Whether rows of another batch can join these."""
        return self.leaves and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in _layers(self.cache))

    @property
    def plain(self) -> bool:
        """Whether a row's prefix can be kept for later."""
        return self.joins and all(type(layer) is DynamicLayer and layer.is_initialized for layer in _layers(self.cache))

    def grow(self, added: Sequence[int]) -> None:
        """A forward has added as many columns as the largest number in `added`; row i uses the last `added[i]` of them. Rows that had
        tokens before and use fewer have a gap now: what they had moves to the right."""
        columns = max(added)
        if self.width:
            _close_gaps(self.cache, [columns - used for used in added], columns)
        self.lengths = [length + used for length, used in zip(self.lengths, added, strict=True)]
        self.width += columns
        if isinstance(self.cache, StateCache):
            self.cache.length = self.width
        self._trim()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, and only as many columns as the longest of them needs."""
        if rows and list(rows) != list(range(len(self.lengths))):
            self.cache.reorder_cache(torch.tensor(rows, dtype=torch.long))
            self.lengths = [self.lengths[row] for row in rows]
            self._trim()

    def _trim(self) -> None:
        needed = max(self.lengths, default=0)
        if needed < self.width and self.joins:
            _cut_left(self.cache, self.width - needed)
            self.width = needed

    def join(self, other: BatchCache) -> None:
        """Put the rows of `other` after these. If memory runs out, these rows stay as they are."""
        pairs = [(m, t) for m, t in zip(_layers(self.cache), _layers(other.cache), strict=True) if m.is_initialized]
        joined = [(_stack(mine.keys, theirs.keys), _stack(mine.values, theirs.values)) for mine, theirs in pairs]
        self.width = max(self.width, other.width)
        self.lengths += other.lengths
        for (mine, _), (keys, values) in zip(pairs, joined, strict=True):
            mine.keys, mine.values = keys, values
            if isinstance(mine, DynamicSlidingWindowLayer):
                mine.cumulative_length = self.width

    def prefix(self, row: int, ids: Sequence[int]) -> Prefix:
        """A copy of one row, to continue from when its batch is gone. `ids` are its tokens."""
        start = self.width - self.lengths[row]
        copies = [
            (layer.keys[row : row + 1, :, start:].clone(), layer.values[row : row + 1, :, start:].clone()) for layer in _layers(self.cache)
        ]
        return Prefix(list(ids[: self.lengths[row]]), copies)


def from_prefixes(prefixes: Sequence[Prefix], lengths: Sequence[int]) -> BatchCache:
    """A batch in which row i begins with the first `lengths[i]` tokens of prefix i."""
    width = max(lengths)
    cache = DynamicCache()
    for number in range(len(prefixes[0].layers)):
        keys, values = (
            torch.cat([_pad_left(p.layers[number][kind][:, :, :n], width) for p, n in zip(prefixes, lengths, strict=True)])
            for kind in (0, 1)
        )
        cache.update(keys, values, number)
    return BatchCache(cache, lengths, width)


def _layers(cache: Any) -> list[Any]:
    return list(cache.layers)


def _close_gaps(cache: Any, gaps: Sequence[int], added: int) -> None:
    if not any(gaps):
        return
    layers = _layers(cache)
    width = layers[0].keys.shape[COLUMNS]
    column = torch.arange(width, device=layers[0].keys.device)
    gap = torch.tensor(gaps, device=column.device)[:, None]
    source = torch.where(column >= width - added + gap, column, (column - gap).clamp(min=0))
    for layer in layers:
        index = source.to(layer.keys.device)[:, None, :, None]
        layer.keys = layer.keys.gather(COLUMNS, index.expand_as(layer.keys))
        layer.values = layer.values.gather(COLUMNS, index.expand_as(layer.values))


def _cut_left(cache: Any, columns: int) -> None:
    for layer in _layers(cache):
        if not layer.is_initialized:
            continue
        kept = layer.get_seq_length() - columns
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = kept
            kept = min(kept, layer.sliding_window - 1)
        layer.keys = layer.keys[:, :, layer.keys.shape[COLUMNS] - kept :]
        layer.values = layer.values[:, :, layer.values.shape[COLUMNS] - kept :]


def _stack(first: Tensor, second: Tensor) -> Tensor:
    columns = max(first.shape[COLUMNS], second.shape[COLUMNS])
    return torch.cat([_pad_left(first, columns), _pad_left(second, columns)])


def _pad_left(states: Tensor, columns: int) -> Tensor:
    missing = columns - states.shape[COLUMNS]
    if missing <= 0:
        return states
    rows, heads, _, size = states.shape
    return torch.cat([states.new_zeros(rows, heads, missing, size), states], dim=COLUMNS)
