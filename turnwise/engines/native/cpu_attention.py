"""Attention on a CPU, where a page is a slot as long as the longest sequence.

Rows that read one token share one call: keys and values are read in place, as a range of slots, and the lengths are a mask. A copy is
made only if the rows lie so scattered that reading everything between them would cost more. Rows that read several tokens (prompts) have
a call each: their own length, no padding. Query heads that share a key head are queries of one head here, so nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from turnwise.engines.native.weights import Shape

SCATTERED = 2.0  # as many slots for a row: then a copy of the rows' own slots is quicker


class Singles:
    """Rows with one new token each: `slots[i]` holds `lengths[i]` tokens, the new one included."""

    def __init__(self, slots: Sequence[int], lengths: Sequence[int], dtype: torch.dtype):
        self.longest = max(lengths)
        low, high = min(slots), max(slots) + 1
        self.range: slice | Tensor
        if high - low <= SCATTERED * len(slots):
            self.range = slice(low, high)
            place = [slot - low for slot in slots]
            self.place = None if place == list(range(high - low)) else torch.tensor(place)
            rows = high - low
        else:
            self.range, self.place, rows = torch.tensor(slots), None, len(slots)
        limit = torch.ones(rows, dtype=torch.long)  # a slot of nobody here attends to one token: all masked would not be a number
        if self.place is None:
            limit[:] = torch.tensor(lengths)
        else:
            limit[self.place] = torch.tensor(lengths)
        outside = torch.arange(self.longest) >= limit[:, None]
        self.mask = torch.zeros(rows, 1, 1, self.longest, dtype=dtype).masked_fill_(outside[:, None, None], -torch.inf)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
        """query [rows, heads, size]; keys and values [slots, kv heads, tokens, size]."""
        grouped = query.reshape(len(query), shape.kv_heads, shape.group, shape.head_dim)
        if self.place is not None:
            grouped = grouped.new_zeros(len(self.mask), *grouped.shape[1:]).index_copy_(0, self.place, grouped)
        k, v = keys[self.range][:, :, : self.longest], values[self.range][:, :, : self.longest]
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask)
        return (out if self.place is None else out[self.place]).reshape(len(query), -1)


class Prompt:
    """A row with several new tokens: `count` of them, after `before` others."""

    def __init__(self, slot: int, before: int, count: int, dtype: torch.dtype):
        self.slot, self.length, self.count = slot, before + count, count
        self.mask = None
        if before:
            outside = torch.arange(self.length) > torch.arange(before, self.length)[:, None]
            self.mask = torch.zeros(count, self.length, dtype=dtype).masked_fill_(outside, -torch.inf)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
        """query [count, heads, size]."""
        grouped = query.view(self.count, shape.kv_heads, shape.group, shape.head_dim).permute(1, 2, 0, 3)
        size = (shape.kv_heads, shape.group, self.length, shape.head_dim)
        k, v = (x[self.slot, :, None, : self.length].expand(size) for x in (keys, values))
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=self.mask, is_causal=self.mask is None)
        return out.permute(2, 0, 1, 3).reshape(self.count, -1)
