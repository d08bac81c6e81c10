"""The model's forward with torch's own operations: the engine on a CPU, and the definition that the GPU's kernels are tested against.

Small models on a CPU spend their time in the overhead of operations, so there are few and large ones: prompts and single tokens of
all rows go through every layer together, as one list of tokens without padding.
"""

from __future__ import annotations

from itertools import chain as concatenated
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, silu

from turnwise.engines.native.requests import Ready, RunningRequest, Step
from turnwise.engines.native.weights import NO_ROTATION, Layer, Weights
from turnwise.engines.sampling import Columns, Noted, measure, reports_of, sample, signed
from turnwise.kernels.attend_cpu import Calls, Prompt, Singles
from turnwise.kernels.cache_8bit import Packed, copy_beginning, stored, views
from turnwise.util.threads import at_once

NO_LIMIT = torch.iinfo(torch.int64).max
Parts = list[Singles | Prompt]
ALIGNMENT = 64  # bytes, as torch's own tensors have


class CpuRunner:
    """Runs steps with torch's operations over `page_count` pages of `page_size` tokens."""

    mixed = True
    ahead = 0

    def __init__(self, weights: Weights, slots: int, page_count: int, page_size: int, kind: str = "model"):
        self.weights, self.page_count, self.page_size = weights, page_count, page_size
        self._stored = stored(kind, weights.dtype, weights.shape.head_dim)
        self.rotations = weights.rotations(page_size)
        self._shift_keys()
        self._cache: Tensor | None = None  # [layers, keys and values, pages, kv heads, tokens, size]
        self._floats = torch.empty(slots, 3, dtype=torch.float64)  # temperature, top-p, min-p
        self._integers = torch.empty(slots, 3, dtype=torch.int64)  # greedy, top-k, seed
        self._truncates = [False] * slots
        self._threads, self._calls = 1, Calls()
        self._look_at_threads()

    @property
    def cache(self) -> Tensor:
        if self._cache is None:
            shape = self.weights.shape
            dtype, width = self._stored
            size = (shape.layers, 2, self.page_count, shape.kv_heads, self.page_size, width)
            # zeros: what follows a row's end gets weight 0, and 0 × NaN is NaN
            self._cache = untouched_zeros(size, dtype, self.weights.device)
        return self._cache

    def update(self) -> None:
        self.weights.update()
        self._shift_keys()
        self._look_at_threads()

    def _look_at_threads(self) -> None:
        """Whether a second thread may make calls: a tiny model leaves a core idle."""
        threads = at_once(torch.get_num_threads()) if self.weights.device.type == "cpu" else 1
        if threads != self._threads:
            self._threads, self._calls = threads, Calls(threads)

    def _shift_keys(self) -> None:
        if self._stored[0] == torch.int8:
            with torch.no_grad():
                self.weights.shift_keys(self.page_size)

    def sleep(self) -> None:
        self._cache = None

    def clean(self) -> None:
        self._cache = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, step: Step) -> Ready:
        for row in step.admitted:
            s = row.request.sampling
            self._floats[row.slot] = torch.tensor([s.temperature or 1.0, s.top_p, s.min_p], dtype=torch.float64)
            self._integers[row.slot] = torch.tensor([s.temperature == 0, s.top_k or NO_LIMIT, signed(row.request.seed)])
            self._truncates[row.slot] = s.temperature > 0 and bool(s.top_k or s.top_p < 1 or s.min_p)
        for copy in step.copies:
            copy_beginning(self.cache, *copy)
        drawing = step.drawing
        order = sorted(range(len(step.rows)), key=lambda i: step.counts[i] > 1)  # single tokens first
        index_of = {i: number for number, i in enumerate(order)}
        hidden = self._forward([step.rows[i] for i in order], [step.counts[i] for i in order], [index_of[i] for i in drawing])
        if not drawing:
            return Ready()
        logits = linear(self._norm(hidden, self.weights.norm), self.weights.head, self.weights.head_bias)
        return self._sample([step.rows[i] for i in drawing], self.weights.bounded(logits))

    def _sample(self, rows: list[RunningRequest], logits: Tensor) -> Ready:
        slots = [row.slot for row in rows]
        floats, integers = self._floats[slots], self._integers[slots]
        columns = Columns(
            temperature=floats[:, 0].float(),
            greedy=integers[:, 0] == 1,
            top_k=integers[:, 1],
            top_p=floats[:, 1],
            min_p=floats[:, 2],
            seed=integers[:, 2],
            truncates=any(self._truncates[slot] for slot in slots),
        )
        sampled = sample(logits, columns, torch.tensor([row.drawn for row in rows]))
        reports = reports_of(row.request.sampling for row in rows)
        noted = Noted(reports, measure(logits, columns.temperature, reports)) if reports else None
        return Ready(sampled.tokens.tolist(), sampled.logprobs.tolist(), noted)

    def _forward(self, rows: list[RunningRequest], counts: list[int], drawing: list[int]) -> Tensor:
        """The last layer's output for the last token of the rows that draw; keys and values of all tokens go into the cache."""
        w, shape = self.weights, self.weights.shape
        pages = [row.chain.pages[0] for row in rows]
        starts = [row.computed for row in rows]
        tokens = list(concatenated.from_iterable(row.ids[s : s + n] for row, s, n in zip(rows, starts, counts, strict=True)))
        position = torch.tensor(list(concatenated.from_iterable(range(s, s + n) for s, n in zip(starts, counts, strict=True))))
        page = torch.tensor(pages).repeat_interleave(torch.tensor(counts))
        single = sum(n == 1 for n in counts)
        sizes = [single, *counts[single:]] if single else counts
        longest = max(s + n for s, n in zip(starts, counts, strict=True))
        windows = {layer.window if layer.window < longest else 0 for layer in w.layers}
        parts = {window: self._parts(pages, starts, counts, single, window) for window in windows}
        targets = page, position, self._places(page, position)
        turns = [(cos[position][:, None], sin[position][:, None]) for cos, sin in self.rotations]
        x = w.embed(torch.tensor(tokens))
        for number, layer in enumerate(w.layers):
            heads = layer.qkv(self._norm(x, layer.before_attention)).view(len(tokens), -1, shape.head_dim)
            query = self._rotate(layer, heads, *turns[layer.rotation])
            keys, values = self._keep(number, layer, heads[:, shape.heads :], *targets)
            window = layer.window if layer.window < longest else 0
            if number == len(w.layers) - 1 and len(drawing) < len(tokens):
                if not drawing:
                    return x[:0]
                ends = (torch.tensor(counts).cumsum(0) - 1)[drawing]
                x, query, sizes = x.index_select(0, ends), query.index_select(0, ends), [len(drawing)]
                parts[window] = [Singles([pages[i] for i in drawing], [starts[i] + counts[i] for i in drawing], w.dtype, window)]
            seen = self._calls.attend(list(zip(parts[window], query.split(sizes), strict=True)), keys, values, shape)
            x = self._finish(x, layer, seen[0] if len(seen) == 1 else torch.cat(seen))
        return x

    def _keep(
        self, number: int, layer: Layer, heads: Tensor, page: Tensor, position: Tensor, vectors: Tensor
    ) -> tuple[Tensor | Packed, Tensor | Packed]:
        """Put new keys and values into a layer's cache; returns all that it holds of both."""
        cache, shape = self.cache[number], self.weights.shape
        if cache.dtype == torch.int8:
            both = views(cache, self.weights.dtype, layer.shift)
            for packed, new in zip(both, heads.split(shape.kv_heads, 1), strict=True):
                packed.put(page, position, new)
            return both
        cache.view(-1, shape.head_dim).index_copy_(0, vectors, heads.reshape(-1, shape.head_dim))
        return cache[0], cache[1]

    def _parts(self, pages: list[int], starts: list[int], counts: list[int], single: int, window: int) -> Parts:
        """Attention for all rows: the first `single` ones read one token each."""
        kind = self.weights.dtype
        parts: Parts = [Prompt(pages[i], starts[i], counts[i], kind, window) for i in range(single, len(pages))]
        if single:
            parts.insert(0, Singles(pages[:single], [s + 1 for s in starts[:single]], kind, window))
        return parts

    def _finish(self, x: Tensor, layer: Layer, seen: Tensor) -> Tensor:
        """The residual after a layer, of what its attention has seen."""
        x = layer.out.add(seen, x) if layer.after_attention is None else x + self._norm(layer.out(seen), layer.after_attention)
        normed = self._norm(x, layer.before_mlp)
        if layer.experts is not None:
            return x + layer.experts(normed, self._activate)
        active = self._activate(layer.gate_up(normed))
        if layer.after_mlp is None:
            added: Tensor = layer.down.add(active, x)
            return added
        return x + self._norm(layer.down(active), layer.after_mlp)

    def _activate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        active = silu(gate) if self.weights.shape.activation == "silu" else gelu(gate, approximate="tanh")
        return active.mul_(up)

    def _places(self, page: Tensor, position: Tensor) -> Tensor:
        """Where in a layer's cache, as a list of vectors, each token's keys (all heads) and values (all heads) go."""
        heads = self.weights.shape.kv_heads
        kinds = torch.arange(2)[:, None] * self.page_count
        return (((kinds + page[:, None, None]) * heads + torch.arange(heads)) * self.page_size + position[:, None, None]).flatten()

    def _rotate(self, layer: Layer, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries and keys normed (Qwen3, Gemma) and rotated, in place; returns the queries."""
        shape = self.weights.shape
        turning = heads[:, : shape.heads + shape.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            turning[:, : shape.heads] = self._norm(turning[:, : shape.heads], layer.q_norm)
            turning[:, shape.heads :] = self._norm(turning[:, shape.heads :], layer.k_norm)
        if layer.rotation == NO_ROTATION:
            return turning[:, : shape.heads]
        across = heads.view(-1, shape.head_dim).roll(shape.head_dim // 2, -1)  # one long list: faster than a part of each row
        turning.mul_(cos).addcmul_(across.view_as(heads)[:, : shape.heads + shape.kv_heads], sin)
        return turning[:, : shape.heads]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As transformers rounds it: the normed value first, then its product with the weight; with a float32 weight only the product."""
        if x.dtype == torch.float32:
            return rms_norm(x, (x.shape[-1],), weight, self.weights.shape.eps)
        if weight.dtype != x.dtype:
            return rms_norm(x.float(), (x.shape[-1],), weight, self.weights.shape.eps).to(x.dtype)
        return rms_norm(x.float(), (x.shape[-1],), None, self.weights.shape.eps).to(x.dtype) * weight


def untouched_zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On a CPU, memory that nobody writes to is not taken from the machine (`torch.zeros` writes all of it)."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    count = prod(size) * dtype.itemsize
    raw = np.zeros(count + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + count]).view(dtype).view(size)
