"""Attention on a CPU, where a page is as long as the longest sequence, so a row has one page.

Rows that read one token share one call: keys and values are read in place, as a range of pages, and the lengths are a mask. If the rows
are so scattered that reading everything between them would cost more, each has its own call. So have rows that read several tokens
(prompts): their own length, no padding. Query heads that share a key head are queries of one head here, so nothing is repeated.

A layer with a sliding window has masks of its own; keys that are behind every row's window are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from turnwise.engines.native.cache_8bit import Packed
from turnwise.engines.native.families import Shape

CALL = 200  # tokens that are read in the time that another call takes


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

    def attend(self, query: Tensor, keys: Tensor | Packed, values: Tensor | Packed, shape: Shape) -> Tensor:
        """query [rows, heads, size]; keys and values [pages, kv heads, tokens, size]."""
        grouped = query.reshape(len(query), shape.kv_heads, shape.group, shape.head_dim)
        if self.alone is not None:
            found = [
                scaled_dot_product_attention(row, _own(keys, *place), _own(values, *place), scale=shape.scaling)
                for row, place in zip(grouped.split(1), self.alone, strict=True)
            ]
            return torch.cat(found).reshape(len(query), -1)
        if self.rows_at is not None:
            grouped = grouped.new_zeros(len(self.mask), *grouped.shape[1:]).index_copy_(0, self.rows_at, grouped)
        k, v = _own(keys, self.range, self.seen), _own(values, self.range, self.seen)
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, scale=shape.scaling)
        return (out if self.rows_at is None else out[self.rows_at]).reshape(len(query), -1)


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

    def attend(self, query: Tensor, keys: Tensor | Packed, values: Tensor | Packed, shape: Shape) -> Tensor:
        """query [count, heads, size]."""
        grouped = query.view(self.count, shape.kv_heads, shape.group, shape.head_dim).permute(1, 2, 0, 3)
        size = (shape.kv_heads, shape.group, self.seen.stop - self.seen.start, shape.head_dim)
        k, v = (_own(x, self.page, self.seen)[:, None].expand(size) for x in (keys, values))
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, is_causal=self.mask is None, scale=shape.scaling)
        return out.permute(2, 0, 1, 3).reshape(self.count, -1)


def _own(pages: Tensor | Packed, own: slice | int, seen: slice) -> Tensor:
    """What these pages hold of these tokens."""
    return pages.part(own, seen) if isinstance(pages, Packed) else pages[own, :, seen]
