"""Attention on a CPU, where a page is as long as the longest sequence, so a row has one page.

Rows that read one token share one call: keys and values are read in place, as a range of pages, and the lengths are a mask. If the rows
are so scattered that reading everything between them would cost more, each has its own call. So have rows that read several tokens
(prompts): their own length, no padding. Query heads that share a key head are queries of one head here, so nothing is repeated.

A layer with a sliding window has masks of its own; keys that are behind every row's window are not read.

The calls of a layer are independent of each other. A tiny model's are too small for several threads inside each, and most of their time
is spent on reading the cache, so two threads make half of them each (`Calls`). Every call gives the same bits in either thread, and rows
that share one also do if it is cut between rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import accumulate, islice
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from turnwise.kernels.cache_8bit import Packed

CALL = 200  # tokens that are read in the time that another call takes
WORTH = 8000  # tokens that are read by calls that are worth a second thread
CUTS = 4  # calls that replace one of many rows for two threads


class Shape(Protocol):
    """What is read of a model's shape (`engines/native/families.py`)."""

    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def scaling(self) -> float | None: ...


Call = tuple[int, Callable[[], Tensor]]  # about as many tokens as it reads, and the call


class Singles:
    """Rows with one new token each: `pages[i]` holds `lengths[i]` tokens, the new one included. `window`: how many are seen; 0: all."""

    def __init__(self, pages: Sequence[int], lengths: Sequence[int], dtype: torch.dtype, window: int = 0):
        self.seen = slice(max(0, min(lengths) - window) if window else 0, max(lengths))
        self.range = slice(min(pages), max(pages) + 1)
        rows = self.range.stop - self.range.start
        self.alone: list[tuple[slice, slice]] | None = None
        if rows * (self.seen.stop - self.seen.start) > sum(min(n, window or n) + CALL for n in lengths):
            each = zip(pages, lengths, strict=True)
            self.alone = [(slice(page, page + 1), slice(max(0, n - window) if window else 0, n)) for page, n in each]
            return
        rows_at = [page - self.range.start for page in pages]
        self.rows_at = None if rows_at == list(range(rows)) else torch.tensor(rows_at)
        limit = torch.ones(rows, dtype=torch.long)  # an unused page attends to one token: with none, the result is NaN
        if self.rows_at is None:
            limit[:] = torch.tensor(lengths)
        else:
            limit[self.rows_at] = torch.tensor(lengths)
        if window and self.seen.start:  # an unused page sees the first token that is read
            limit.clamp_(min=self.seen.start + 1)
        key = torch.arange(self.seen.start, self.seen.stop)
        outside = key >= limit[:, None]
        if window:
            outside |= key < limit[:, None] - window
        self.mask = torch.zeros(rows, 1, 1, len(key), dtype=dtype).masked_fill_(outside[:, None, None], -torch.inf)

    def calls(self, query: Tensor, keys: Tensor | Packed, values: Tensor | Packed, shape: Shape, cuts: int = 1) -> list[Call]:
        """query [rows, heads, size]; keys and values [pages, kv heads, tokens, size]. `cuts`: calls for rows that may share one."""
        grouped = query.reshape(len(query), shape.kv_heads, shape.group, shape.head_dim)

        def read(queries: Tensor, own: slice, seen: slice, mask: Tensor | None = None) -> Tensor:
            k, v = _own(keys, own, seen), _own(values, own, seen)
            return scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=shape.scaling)

        if self.alone is not None:
            each = zip(grouped.split(1), self.alone, strict=True)
            return [(seen.stop - seen.start + CALL, partial(read, row, own, seen)) for row, (own, seen) in each]
        if self.rows_at is not None:
            grouped = grouped.new_zeros(len(self.mask), *grouped.shape[1:]).index_copy_(0, self.rows_at, grouped)
        found, first, size = list[Call](), self.range.start, -(-len(grouped) // cuts)
        for queries, mask in zip(grouped.split(size), self.mask.split(size), strict=True):
            own = slice(first, first + len(queries))
            found.append((mask.numel() + CALL, partial(read, queries, own, self.seen, mask)))
            first = own.stop
        return found

    def join(self, found: Sequence[Tensor]) -> Tensor:
        """What all rows have read, [rows, heads × size], of what the calls gave."""
        out = found[0] if len(found) == 1 else torch.cat(list(found))
        return (out if self.alone is not None or self.rows_at is None else out[self.rows_at]).flatten(1)


class Prompt:
    """A row with several new tokens: `count` of them, after `before` others. `window`: how many each of them sees; 0: all."""

    def __init__(self, page: int, before: int, count: int, dtype: torch.dtype, window: int = 0):
        self.page, self.count = page, count
        self.seen = slice(max(0, before + 1 - window) if window else 0, before + count)
        self.mask = None
        if before or 0 < window < count:
            key, own = torch.arange(self.seen.start, self.seen.stop), torch.arange(before, before + count)[:, None]
            outside = key > own
            if window:
                outside |= key <= own - window
            self.mask = torch.zeros(count, len(key), dtype=dtype).masked_fill_(outside, -torch.inf)

    def calls(self, query: Tensor, keys: Tensor | Packed, values: Tensor | Packed, shape: Shape, cuts: int = 1) -> list[Call]:
        """query [count, heads, size]."""
        return [(self.count * (self.seen.stop - self.seen.start) // 4 + CALL, partial(self._read, query, keys, values, shape))]

    def join(self, found: Sequence[Tensor]) -> Tensor:
        return found[0]

    def _read(self, query: Tensor, keys: Tensor | Packed, values: Tensor | Packed, shape: Shape) -> Tensor:
        grouped = query.view(self.count, shape.kv_heads, shape.group, shape.head_dim).permute(1, 2, 0, 3)
        size = (shape.kv_heads, shape.group, self.seen.stop - self.seen.start, shape.head_dim)
        k, v = (_own(x, self.page, self.seen)[:, None].expand(size) for x in (keys, values))
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, is_causal=self.mask is None, scale=shape.scaling)
        return out.permute(2, 0, 1, 3).reshape(self.count, -1)


class Calls:
    """Makes the calls of a layer's parts, in this thread or in two."""

    def __init__(self, threads: int = 1):
        self._helper = ThreadPoolExecutor(1) if threads > 1 else None

    def attend(
        self, parts: Sequence[tuple[Singles | Prompt, Tensor]], keys: Tensor | Packed, values: Tensor | Packed, shape: Shape
    ) -> list[Tensor]:
        """What the rows of every part have read."""
        cuts = 1 if self._helper is None else CUTS
        calls = [part.calls(query, keys, values, shape, cuts) for part, query in parts]
        found = iter(self._made([call for own in calls for call in own]))
        return [part.join(list(islice(found, len(own)))) for (part, _), own in zip(parts, calls, strict=True)]

    def _made(self, calls: Sequence[Call]) -> list[Tensor]:
        total = sum(tokens for tokens, _ in calls)
        if self._helper is None or total < WORTH or len(calls) < 2:
            return _results(calls)
        before = list(accumulate(tokens for tokens, _ in calls[:-1]))
        cut = 1 + min(range(len(before)), key=lambda place: abs(2 * before[place] - total))
        others = self._helper.submit(_results, calls[cut:])
        try:
            return _results(calls[:cut]) + others.result()
        finally:
            wait([others])  # nothing reads the cache after an error


def _results(calls: Sequence[Call]) -> list[Tensor]:
    with torch.no_grad():
        return [call() for _, call in calls]


def _own(pages: Tensor | Packed, own: slice | int, seen: slice) -> Tensor:
    """What these pages hold of these tokens."""
    return pages.part(own, seen) if isinstance(pages, Packed) else pages[own, :, seen]
