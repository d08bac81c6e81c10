"""The native engine's GPU kernels in plain torch, so that what surrounds them (pages, copies, slots, steps ahead) runs on a CPU.

They do what the kernels do and nothing else: read and write the same pages of the same cache, in the same order.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, silu

from turnwise.engines.fourbit import dense
from turnwise.engines.native import NativeEngine
from turnwise.kernels.cache_8bit import views
from turnwise.kernels.sample import Columns, sample


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, overlap: bool = False) -> Tensor:
    if delta is not None:
        x += delta if delta.dim() == 2 else delta.sum(0).to(x.dtype)
    return rms_norm(x, (x.shape[-1],), weight, eps)


def gate_mul(both: Tensor, kind: str, overlap: bool = False) -> Tensor:
    gate, up = both.chunk(2, -1)
    return (silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")) * up


def fits(x: Tensor, weight: Tensor, blocks: Any) -> bool:
    return True


def product(x: Tensor, weight: Tensor, bias: Tensor | None, blocks: Any, overlap: bool = False) -> Tensor:
    if blocks.split == 1:
        return linear(x, weight, bias)
    share = -(-x.shape[1] // blocks.split)
    parts = torch.stack([x[:, n : n + share].float() @ weight[:, n : n + share].float().t() for n in range(0, x.shape[1], share)])
    if bias is not None:
        parts[0] += bias
    return parts


def packed_product(x: Tensor, weights: Any, bias: Tensor | None) -> Tensor | None:
    return linear(x, torch.cat([dense(weight) for weight in weights]), bias)


class Everything(dict[Any, Any]):
    """A table of products that has the same blocks for every shape."""

    def __init__(self, **blocks: Any):
        super().__init__()
        self.blocks = blocks

    def get(self, key: Any, default: Any = None) -> Any:
        return ((10**6, self.blocks[key[0]]),) if key[0] in self.blocks else default


def begin(control: Tensor, last: Tensor, table: Tensor, page_size: int) -> Tensor:
    slots, positions = control[0].long(), control[1].long()
    table[slots, positions // page_size] = control[2]
    return last[slots].clone()


def rotate(qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any) -> None:
    heads, place, size = qkv.view(len(qkv), -1, shape.head_dim), positions.long(), cache.shape[3]
    turning = heads[:, : shape.heads + shape.kv_heads]
    if layer.q_norm is not None:
        turning[:, : shape.heads] = add_norm(turning[:, : shape.heads], None, layer.q_norm, shape.eps)
        turning[:, shape.heads :] = add_norm(turning[:, shape.heads :], None, layer.k_norm, shape.eps)
    cos, sin = (table[layer.rotation][place][:, None] for table in (tables.cos, tables.sin))
    turning.copy_(turning * cos + turning.roll(shape.head_dim // 2, -1) * sin)
    page = tables.pages[slots.long(), place // size].long()
    if cache.dtype == torch.int8:
        keys, values = views(cache, qkv.dtype)
        shift = 0.0 if layer.shift is None else layer.shift[place]
        keys.put(page, place % size, turning[:, shape.heads :] - shift)
        values.put(page, place % size, heads[:, shape.heads + shape.kv_heads :])
        return
    cache[0][page, :, place % size] = turning[:, shape.heads :]
    cache[1][page, :, place % size] = heads[:, shape.heads + shape.kv_heads :]


def _attend(query: Tensor, cache: Tensor, layer: Any, pages: Tensor, first: int, shape: Any) -> Tensor:
    """Tokens of one sequence from position `first` on: [tokens, heads · size]."""
    count = len(query)
    used = pages[: -(-(first + count) // cache.shape[3])].long()
    packed = cache.dtype == torch.int8
    both = [x.part(used, slice(None)) for x in views(cache, query.dtype)] if packed else [x[used] for x in cache]
    keys, values = (x.transpose(0, 1).flatten(1, 2)[:, : first + count] for x in both)
    if packed and layer.shift is not None:
        keys = keys + layer.shift[: first + count].transpose(0, 1)
    keys, values = keys.repeat_interleave(shape.group, 0), values.repeat_interleave(shape.group, 0)
    heads = query.view(count, shape.heads, shape.head_dim).transpose(0, 1)
    key, own = torch.arange(first + count), torch.arange(first, first + count)[:, None]
    hidden = (key > own) | (key <= own - (layer.window or first + count))
    score = (heads @ keys.transpose(1, 2) * shape.scale).masked_fill(hidden, -torch.inf)
    return (score.softmax(-1) @ values).transpose(0, 1).reshape(count, -1)


def attend_singles(
    qkv: Tensor, cache: Tensor, layer: Any, tables: Any, slots: Tensor, positions: Tensor, shape: Any
) -> Tensor:  # fmt: skip
    if qkv.dim() == 3:
        qkv = qkv.sum(0).to(tables.cos[0].dtype)
    rotate(qkv, cache, layer, tables, slots, positions, shape)
    queries, seqs = qkv[:, : shape.heads * shape.head_dim], zip(slots.tolist(), positions.tolist(), strict=True)
    rows = [_attend(queries[n : n + 1], cache, layer, tables.pages[slot], place, shape) for n, (slot, place) in enumerate(seqs)]
    return torch.cat(rows)


def attend_prompts(qkv: Tensor, cache: Tensor, layer: Any, table: Tensor, blocks: Tensor, block_size: int, shape: Any) -> Tensor:
    queries = qkv[:, : shape.heads * shape.head_dim]
    out = torch.full_like(queries, torch.nan)  # what no block covers must not matter
    for slot, token, first, count in blocks.tolist():
        if count:
            out[token : token + count] = _attend(queries[token : token + count], cache, layer, table[slot], first, shape)
    return out


def draw_tokens(
    logits: Tensor, slots: Tensor, places: Tensor, floats: Tensor, integers: Tensor, last: Tensor, tokens: Tensor, logprobs: Tensor
) -> None:
    slot = slots.long()
    f, i = floats[slot], integers[slot]
    columns = Columns(f[:, 0], i[:, 0] == 1, i[:, 1], f[:, 1].double(), f[:, 2].double(), i[:, 2], True)
    drawn = sample(logits, columns, places.long())
    tokens.copy_(drawn.tokens)
    logprobs.copy_(drawn.logprobs)
    last[slot] = drawn.tokens


class Drawing(NamedTuple):
    slots: Tensor
    places: Tensor
    floats: Tensor
    integers: Tensor
    last: Tensor
    tokens: Tensor
    logprobs: Tensor


def draw_tiles(logits: Tensor, to: Drawing) -> None:
    assert not ((to.floats[to.slots.long(), 1] < 1) & (to.integers[to.slots.long(), 0] == 0)).any(), "a row is truncated"
    draw_tokens(logits, *to)


def draw_product(hidden: Tensor, head: Tensor, to: Drawing, overlap: bool) -> None:
    draw_tiles(linear(hidden, head), to)


def draw_truncated(hidden: Tensor, head: Tensor, to: Drawing, overlap: bool) -> None:
    draw_tokens(linear(hidden, head), *to)


def draw_nucleus(logits: Tensor, to: Drawing, overlap: bool) -> None:
    draw_tokens(logits, *to)


def note(records: Tensor, tables: Any) -> None:
    slots = records[:, 0].long()
    tables.pages[slots], tables.last[slots] = records[:, 9:], records[:, 1].long()
    low, high = records[:, 4:6].long().unbind(1)
    tables.integers[slots] = torch.cat([records[:, 2:4].long(), (low & 0xFFFFFFFF | high << 32)[:, None]], 1)
    tables.floats[slots] = records[:, 6:9].view(torch.float32)


def copy_pages(cache: Tensor, pairs: Tensor) -> None:
    source, target = pairs.long().unbind(1)
    assert not set(source.tolist()) & set(target.tolist())
    cache[:, :, target] = cache[:, :, source]


MODULES = {
    "layer": (add_norm, gate_mul, rotate),
    "tables": (begin, note, copy_pages),
    "product": (fits, product),
    "product_4bit": (packed_product,),
    "attend": (attend_singles, attend_prompts),
    "sample_tiles": (Drawing, draw_tiles),
    "sample_top_p": (draw_nucleus,),
    "hopper.sample": (draw_product, draw_truncated),
}


def paged_runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a GPU's runner, with these functions in place of the kernels."""
    for name, functions in MODULES.items():
        module = ModuleType(f"turnwise.kernels.{name}")
        for function in functions:
            setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = [f"turnwise.engines.native.{name}" for name in ("layer_products", "gpu_runner")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in names:
        importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))  # removed again after the test
    return sys.modules[names[-1]]


def paged_engine(monkeypatch: pytest.MonkeyPatch, model: Any, pages: int = 40, size: int = 16, **settings: Any) -> NativeEngine:
    """An engine as on a GPU, with so many pages of so many tokens."""
    gpu = paged_runner(monkeypatch)

    def made(weights: Any, slots: int, longest: int, memory: Any, graphs: bool, kind: str) -> Any:
        return gpu.GpuRunner(weights, slots, longest, pages, size, False, kind=kind)

    monkeypatch.setattr("turnwise.engines.native.engine.make_runner", made)
    return NativeEngine(model, **settings)
