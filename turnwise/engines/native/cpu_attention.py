"""Attention on a CPU, where a page is as long as the longest sequence, so a row has one page.

Rows that read one token share one call: keys and values are read in place, as a range of pages, and the lengths are a mask. A copy is
made only if the rows are so scattered that reading everything between them would cost more. Rows that read several tokens (prompts) have
a call each: their own length, no padding. Query heads that share a key head are queries of one head here, so nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from turnwise.engines.native.weights import Shape

SCATTERED = 2.0  # pages read per row: above this, a copy of the rows' own pages is faster


class Singles:
    """Rows with one new token each: `pages[i]` holds `lengths[i]` tokens, the new one included."""

    def __init__(self, pages: Sequence[int], lengths: Sequence[int], dtype: torch.dtype):
        self.longest = max(lengths)
        low, high = min(pages), max(pages) + 1
        self.range: slice | Tensor
        if high - low <= SCATTERED * len(pages):
            self.range = slice(low, high)
            rows_at = [page - low for page in pages]
            self.rows_at = None if rows_at == list(range(high - low)) else torch.tensor(rows_at)
            rows = high - low
        else:
            self.range, self.rows_at, rows = torch.tensor(pages), None, len(pages)
        limit = torch.ones(rows, dtype=torch.long)  # an unused page attends to one token: with none, the result is NaN
        if self.rows_at is None:
            limit[:] = torch.tensor(lengths)
        else:
            limit[self.rows_at] = torch.tensor(lengths)
        outside = torch.arange(self.longest) >= limit[:, None]
        self.mask = torch.zeros(rows, 1, 1, self.longest, dtype=dtype).masked_fill_(outside[:, None, None], -torch.inf)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
        """query [rows, heads, size]; keys and values [pages, kv heads, tokens, size]."""
        grouped = query.reshape(len(query), shape.kv_heads, shape.group, shape.head_dim)
        if self.rows_at is not None:
            grouped = grouped.new_zeros(len(self.mask), *grouped.shape[1:]).index_copy_(0, self.rows_at, grouped)
        k, v = keys[self.range][:, :, : self.longest], values[self.range][:, :, : self.longest]
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask)
        return (out if self.rows_at is None else out[self.rows_at]).reshape(len(query), -1)


class Prompt:
    """A row with several new tokens: `count` of them, after `before` others."""

    def __init__(self, page: int, before: int, count: int, dtype: torch.dtype):
        self.page, self.length, self.count = page, before + count, count
        self.mask = None
        if before:
            outside = torch.arange(self.length) > torch.arange(before, self.length)[:, None]
            self.mask = torch.zeros(count, self.length, dtype=dtype).masked_fill_(outside, -torch.inf)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
        """query [count, heads, size]."""
        grouped = query.view(self.count, shape.kv_heads, shape.group, shape.head_dim).permute(1, 2, 0, 3)
        size = (shape.kv_heads, shape.group, self.length, shape.head_dim)
        k, v = (x[self.page, :, None, : self.length].expand(size) for x in (keys, values))
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, is_causal=self.mask is None)
        return out.permute(2, 0, 1, 3).reshape(self.count, -1)
