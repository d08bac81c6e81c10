"""Forward passes of the transformers engine: rows of different lengths as one padded batch, and prompts with images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from turnwise.agent.vision import Vision
from turnwise.data.images import Picture
from turnwise.engines.module import evaluating, forward_parameters, inner_model
from turnwise.util.errors import TurnwiseError
from turnwise.util.prefix import common_length
from turnwise.util.rotary import Stretching

ADVICE = "Use another model, or the vLLM engine (engine.name=vllm) if vLLM serves it"
LARGEST_NOISE = 1e-3  # of the largest logit, in float32: more than that is not rounding


class BatchForward:
    """Runs a model over batches of rows. `vision` is the processor of a vision-language model; `stretching` knows whether the rotary
    frequencies depend on the length."""

    def __init__(self, model: Any, vision: Vision | None):
        self.model, self.vision = model, vision
        self.stretching = Stretching(model)
        self._takes = forward_parameters(model)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def read(self, ids: list[list[int]], past: BatchCache | None, shifts: Sequence[int] = ()) -> tuple[Tensor, BatchCache]:
        """The logits after the last token of every row, and the cache with the tokens in it. Shorter rows are padded on the left."""
        device = self.device
        added = [len(row) for row in ids]
        new, width = max(added), past.width if past is not None else 0
        had = torch.tensor(past.lengths if past is not None else [0] * len(ids), device=device)[:, None]
        padding = new - torch.tensor(added, device=device)[:, None]
        old_column, new_column = torch.arange(width, device=device), torch.arange(new, device=device)
        mask = torch.cat([old_column >= width - had, new_column >= padding], dim=1)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([[0] * (new - len(row)) + row for row in ids], device=device),
            "attention_mask": mask.long(),
            "past_key_values": past.cache if past is not None else None,
            "use_cache": True,
        }
        if "position_ids" in self._takes:
            shift = torch.tensor(shifts, device=device)[:, None] if any(shifts) else 0
            inputs["position_ids"] = (had + new_column - padding).clamp(min=0) + shift
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 1
        self.stretching.reset()
        output = self.model(**inputs)
        if past is None:
            past = BatchCache(output.past_key_values, [0] * len(ids), 0)
        past.cache = output.past_key_values
        past.grow(added)
        logits = output.logits[:, -1]
        return logits if self.vision is None else self.vision.silence(logits), past

    def look(self, ids: list[list[int]], images: list[Sequence[Picture]]) -> tuple[Tensor, BatchCache, list[int]]:
        """The same for whole rows with images; also how far the positions after the images are from the count of tokens."""
        assert self.vision is not None
        inputs, shifts = self.vision.inputs(inner_model(self.model), ids, images)
        self.stretching.reset()
        output = self.model(**inputs, use_cache=True, **({"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}))
        cache = BatchCache(output.past_key_values, [0] * len(ids), 0)
        cache.grow([len(row) for row in ids])
        return self.vision.silence(output.logits[:, -1]), cache, shifts


def check_batches(model: Any) -> None:
    """Reports a model that does not give the same if rows are padded and continued from a cache. Two short rows are tried once, in float32;
    wrong numbers would be silent."""
    forward, words = BatchForward(model, None), model.get_input_embeddings().weight.shape[0]
    rows, more = [[number % words for number in range(1, end)] for end in (6, 12)], 3 % words
    if len({forward.stretching.key(length) for length in range(1, 13)}) > 1:
        return  # such rows never run together
    try:
        with evaluating(model), torch.no_grad():
            first, cache = forward.read(rows, None)
            together = torch.stack([first, forward.read([[more]] * 2, cache)[0]], dim=1)
            alone = [model(input_ids=torch.tensor([[*row, more]], device=forward.device), use_cache=False).logits[0, -2:] for row in rows]
    except (TurnwiseError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TurnwiseError(f"engine: {type(model).__name__} cannot be sampled by the transformers engine ({reason}). {ADVICE}") from error
    wanted = torch.stack(alone)
    if not wanted.isfinite().all():
        return  # diverged weights, which are reported as what they are
    gap = ((together - wanted).abs().max() / wanted.abs().max()).item()
    if not gap <= LARGEST_NOISE:
        raise TurnwiseError(
            f"engine: the logits of {type(model).__name__} differ by {gap:.2g} if prompts of two lengths are read together and continued "
            f"from its cache, so the transformers engine would sample something else. {ADVICE}"
        )


COLUMNS = 2  # of keys and values: [rows, heads, columns, size]


@dataclass(slots=True)
class Prefix:
    """What one row has computed: its tokens and, layer by layer, their keys and values [1, heads, tokens, size]."""

    ids: Sequence[int]
    layers: list[tuple[Tensor, Tensor]]

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` has in common with this prefix, at most all but its last one, which must be computed to draw the next
        one."""
        return common_length(list(self.ids), list(ids[:-1]))


class BatchCache:
    """A cache with the lengths of its rows and its width: the number of its columns."""

    def __init__(self, cache: Any, lengths: Sequence[int], width: int):
        self.cache = cache
        self.lengths = list(lengths)
        self.width = width

    @property
    def leaves(self) -> bool:
        """Whether rows can leave while the others stay."""
        return type(self.cache) is DynamicCache  # exactly this: a model's custom cache may hold more than its layers

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
        staying = layer.get_seq_length() - columns
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = staying
            staying = min(staying, layer.sliding_window - 1)
        layer.keys = layer.keys[:, :, layer.keys.shape[COLUMNS] - staying :]
        layer.values = layer.values[:, :, layer.values.shape[COLUMNS] - staying :]


def _stack(first: Tensor, second: Tensor) -> Tensor:
    columns = max(first.shape[COLUMNS], second.shape[COLUMNS])
    return torch.cat([_pad_left(first, columns), _pad_left(second, columns)])


def _pad_left(states: Tensor, columns: int) -> Tensor:
    missing = columns - states.shape[COLUMNS]
    if missing <= 0:
        return states
    rows, heads, _, size = states.shape
    return torch.cat([states.new_zeros(rows, heads, missing, size), states], dim=COLUMNS)
