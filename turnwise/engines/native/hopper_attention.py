"""Attention of decode steps with many or uneven rows on Hopper GPUs (`hopper_attention.cu`).

The kernel in Triton (`paged_attention.py`) has a program for every row, which reads nothing while it begins and ends. Here a few blocks
per multiprocessor take one row after another and ask for the next one's pages before they are done with the last one's. They need half of
the instructions: steps of some hundred rows run at the GPU's power limit, where less work is more speed for the whole step.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_longlong, c_void_p
from functools import cache
from math import e, log2
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.native import hopper_driver
from turnwise.engines.native.block_memory import multiprocessors
from turnwise.engines.native.hopper_driver import loaded, usable

PAGE = 64  # tokens
SIZES = (64, 128)  # of a head
MOST_HEADS = 8  # query heads of a key head
TEAM = 3  # warps of a block
BLOCKS = {64: 4, 128: 2}  # that share a multiprocessor, by the size of a head
LEAST, ALWAYS = 192, 512  # rows × key heads: from which on it is faster for uneven rows, and for all
UNEVEN = 1.2  # the longest row over the mean
NAME = "hopper_attention"


@cache
def available(device: torch.device) -> bool:
    """Whether this GPU is a Hopper and the kernel can be compiled for it."""
    return usable(device, lambda: _kernel_of(128, 2, 1, 0, device), "attention in Triton")


def fits(weights: Any, page: int, stored: torch.dtype) -> bool:
    """Whether the kernel takes all layers of a model, with pages of so many tokens in a cache of this kind."""
    shape = weights.shape
    plain = all(not layer.window and layer.shift is None for layer in weights.layers)
    kind = weights.dtype == stored == torch.bfloat16
    return bool(plain and kind and page == PAGE and shape.head_dim in SIZES and shape.group <= MOST_HEADS)


def pays(positions: np.ndarray, kv_heads: int) -> bool:
    """Whether it is faster than the kernel in Triton for rows at these positions."""
    items = len(positions) * kv_heads
    if not LEAST <= items < ALWAYS:
        return items >= ALWAYS
    return bool((positions.max() + 1) * len(positions) > UNEVEN * (positions.sum() + len(positions)))


def attend_rows(
    qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any, arrivals: Tensor
) -> Tensor:
    """As `paged_attention.attend_singles`, of `qkv` in bfloat16, [lanes, heads]; `arrivals` begins with two zeros, also afterwards."""
    lanes, size, device, items = len(qkv), shape.head_dim, qkv.device, len(qkv) * shape.kv_heads
    out = torch.empty(lanes, shape.heads * size, dtype=torch.bfloat16, device=device)
    norm = 0 if layer.q_norm is None else 1 if layer.q_norm.dtype == torch.bfloat16 else 2
    kernel = _kernel_of(size, shape.heads, shape.kv_heads, norm, device)
    norms = (layer.q_norm, layer.k_norm) if norm else (out, out)
    places = qkv, cache, tables.pages, slots, positions, tables.cos[layer.rotation], tables.sin[layer.rotation], *norms, out, arrivals
    given = [place.data_ptr() for place in places]
    given += [qkv.stride(0), cache.stride(0) * cache.element_size(), tables.pages.stride(0), items, shape.scale * log2(e), shape.eps]
    kinds = *(c_void_p for _ in places), c_longlong, c_longlong, c_int, c_int, c_float, c_float
    blocks = min(items, BLOCKS[size] * multiprocessors(device))
    hopper_driver.launch(kernel, blocks, 32 * TEAM, memory_of(size), device, given, kinds, overlap=False)
    return out


def memory_of(size: int) -> int:
    """Bytes that a block takes: pages, queries, the newest key and value, and what each warp has found."""
    return TEAM * 4 * PAGE * size + 16 * (size + 8) + 4 * size + TEAM * 32 * (size + 4) + TEAM * 64


def source_of(size: int, heads: int, kv_heads: int, norm: int) -> str:
    """What is compiled, for norms of queries and keys (0: none, 1: in bfloat16, 2: in float32)."""
    return hopper_driver.source_of(
        "hopper_attention", NAME=NAME, SIZE=size, HEADS=heads, KV=kv_heads, NORM=norm, TEAM=TEAM, BLOCKS=BLOCKS[size]
    )


@cache
def _kernel_of(size: int, heads: int, kv_heads: int, norm: int, device: torch.device) -> Any:
    return loaded(source_of(size, heads, kv_heads, norm), NAME, memory_of(size), device)
