"""How many SMs a GPU has, how much shared memory a program of attention takes, and how many queries it can have for that.

GPUs differ: a program may take 227 KB on an H200, and 99 KB on an RTX 3090, 4090 or 5090."""

from __future__ import annotations

from functools import cache

import torch

from turnwise.util.errors import TurnwiseError

FEWEST_QUERIES = 16  # that one program attends from: the smallest side of a matrix product
NARROW = 128  # numbers of a head, up to which three stages of pages are worth their memory


@cache
def sm_count(device: torch.device) -> int:
    """The number of SMs of a GPU; a few where kernels are interpreted on a CPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of an SM's shared memory that a program may take; no limit where kernels are interpreted."""
    if device.type != "cuda":
        return 1 << 30
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def needed(rows: int, stages: int, size: int, tokens: int, page_bytes: int, item: int, packed: bool = False) -> int:
    """Bytes for so many queries of `size` numbers, pages under way, scores, and a little more. `item`: bytes of a number. `packed`: pages
    are in 8 bits; for products in float32 they are unpacked there."""
    unpacked = tokens * size * item if packed and item == 4 else 0
    return item * rows * (size + tokens) + page_bytes * (stages - 1) + unpacked + 1024


def rows_and_stages(memory: int, most: int, size: int, tokens: int, page_bytes: int, item: int, packed: bool = False) -> tuple[int, int]:
    """How many queries a program takes at once, up to `most`, and the stages of its pages, so that its memory holds them."""
    rows, stages = most, 3 if size <= NARROW else 2
    while (wanted := needed(rows, stages, size, tokens, page_bytes, item, packed)) > memory:
        if stages > 2:
            stages -= 1
        elif rows > FEWEST_QUERIES:
            rows //= 2
        else:
            raise TurnwiseError(
                f"engine: attention over heads of {size} numbers of {8 * item} bits needs {wanted >> 10} KB of an SM's shared memory, "
                f"and this GPU's SMs have {memory >> 10}: set model.dtype = bfloat16, or engine.name = transformers"
            )
    return rows, stages
