"""The model's forward on a GPU: Triton kernels between the matrix products, and CUDA graphs around a decode step.

A step of single tokens is some three hundred small launches, more than a host can issue in the time the GPU needs for them, so it is
recorded once for each size of batch and replayed. A recorded step reads what it works on from a small table of lanes (which slot, which
position), and everything that belongs to a slot stays on the GPU: its pages, its settings, its last token. The next step can therefore
start before the host has seen the tokens of the last one. Prompts run as they come, one list of tokens without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.native.block_memory import memory_of, rows_and_stages
from turnwise.engines.native.cache_8bit import stored
from turnwise.engines.native.draw_kernel import draw_tokens
from turnwise.engines.native.kernels import add_norm, begin, rotate
from turnwise.engines.native.layer_products import LayerProducts
from turnwise.engines.native.paged_attention import attend_prompts, attend_singles
from turnwise.engines.native.prompt_sizes import FEWEST_QUERIES, block_for, end_blocks, row_blocks
from turnwise.engines.native.requests import RunningRequest, Step, StepResult
from turnwise.engines.native.weights import Layer, Weights
from turnwise.engines.sampling import Noted, measure, reports_of, signed

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # lanes of a recorded step; above the last, multiples of it
Attend = Callable[[Tensor, Tensor, Layer], Tensor]


@dataclass(slots=True)
class BlockTables:
    """What the GPU stores by slot, and the rotations by position. The last slot is for padding: unused lanes work on it."""

    cos: tuple[Tensor, ...]  # one entry per rotation of the model; layers without one have an entry that turns nothing
    sin: tuple[Tensor, ...]
    pages: Tensor  # [slots + 1, pages of the longest sequence]
    last: Tensor  # the last token
    floats: Tensor  # temperature, top-p, min-p
    integers: Tensor  # greedy, top-k, seed


class Ends(NamedTuple):
    """Of which tokens the next one is drawn. The last layer computes keys and values of all tokens, and the rest of these alone: `attend`
    is its attention."""

    places: Tensor
    attend: Attend


@dataclass(slots=True)
class Recording:
    """A decode step as a graph: where its lanes are written to and its results read from."""

    graph: Any
    control: Tensor
    tokens: Tensor
    logprobs: Tensor


class Landing:
    """Results on their way to the host."""

    def __init__(self, tokens: Tensor, logprobs: Tensor, count: int, reports: Sequence[str] = (), measured: Tensor | None = None):
        self._tokens = tokens[:count].to("cpu", non_blocking=True)
        self._logprobs = logprobs[:count].to("cpu", non_blocking=True)
        self.noted = Noted(reports, measured[:count].to("cpu", non_blocking=True)) if measured is not None else None
        self._event = torch.cuda.Event() if tokens.is_cuda else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> tuple[list[int], list[float]]:
        if self._event is not None:
            self._event.synchronize()
        return self._tokens.tolist(), self._logprobs.tolist()


def originals(copies: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Source and target pages of copies that are all made at once: a copy of a page that is itself a copy is taken from the original."""
    found: dict[int, int] = {}
    for source, target, _ in copies:
        found[target] = found.get(source, source)
    return [(source, target) for target, source in found.items()]


class CudaRunner:
    """Runs steps over `page_count` pages of `page_size` tokens, and one more for padding lanes."""

    mixed = False
    ahead = 1

    def __init__(self, weights: Weights, slots: int, longest: int, page_count: int, page_size: int, graphs: bool, *, kind: str = "model"):
        self.weights, self.page_count, self.page_size = weights, page_count, page_size
        self._slots, self._graphs = slots, graphs
        self._stored = stored(kind, weights.dtype, weights.shape.head_dim)
        size, item, dtype = weights.shape.head_dim, weights.dtype.itemsize, self._stored[0]
        page_bytes, memory = 2 * page_size * size * dtype.itemsize, memory_of(weights.device)
        rows_and_stages(memory, FEWEST_QUERIES, size, page_size, page_bytes, item, dtype == torch.int8)  # an error if nothing fits
        self._products = LayerProducts(weights)
        self._attend_many: Callable[..., Tensor] = attend_prompts
        cos, sin = zip(*weights.rotations(longest), strict=True)
        device, width = weights.device, -(-longest // page_size)
        self.tables = BlockTables(
            cos=cos,
            sin=sin,
            pages=torch.full((slots + 1, width), page_count, dtype=torch.int32, device=device),
            last=torch.zeros(slots + 1, dtype=torch.int64, device=device),
            floats=torch.ones(slots + 1, 3, dtype=torch.float32, device=device),
            integers=torch.ones(slots + 1, 3, dtype=torch.int64, device=device),
        )
        self._shift_keys()
        self._cache: Tensor | None = None  # [layers, keys and values, pages, kv heads, tokens, size]
        self._recordings: dict[int, Recording] = {}
        self._pool: Any = None

    @property
    def cache(self) -> Tensor:
        if self._cache is None:
            shape = self.weights.shape
            dtype, width = self._stored
            size = (shape.layers, 2, self.page_count + 1, shape.kv_heads, self.page_size, width)
            self._cache = torch.zeros(size, dtype=dtype, device=self.weights.device)
        return self._cache

    def update(self) -> None:
        if self.weights.update():
            self._forget()
        self._shift_keys()

    def _shift_keys(self) -> None:
        if self._stored[0] == torch.int8:
            with torch.no_grad():
                self.weights.shift_keys(self.tables.pages.shape[1] * self.page_size)

    def sleep(self) -> None:
        self._forget()  # the recorded steps point into the cache
        self._cache = None
        if self.weights.device.type == "cuda":
            torch.cuda.empty_cache()

    def clean(self) -> None:
        if self._cache is not None:
            self._cache.zero_()

    def _forget(self) -> None:
        self._recordings.clear()
        self._pool = None

    def launch(self, step: Step) -> StepResult:
        with torch.no_grad():
            self._note_settings(step.admitted)
            if step.copies:
                source, target = (self._upload(column, np.int64) for column in zip(*originals(step.copies), strict=True))
                self.cache.index_copy_(2, target, self.cache.index_select(2, source))
            if max(step.counts) == 1 and len(step.drawing) == len(step.rows):
                return self._singles(step.rows)
            return self._prompts(step)

    def _upload(self, values: Any, dtype: Any = np.int32) -> Tensor:
        """Copies to the GPU, without waiting for its current work."""
        host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
        return host.pin_memory().to(self.weights.device, non_blocking=True) if self.weights.device.type == "cuda" else host

    def _note_settings(self, rows: list[RunningRequest]) -> None:
        """Upload what belongs to rows with a new slot: their pages, settings, and last token."""
        if not rows:
            return
        pages = np.full((len(rows), self.tables.pages.shape[1]), self.page_count)
        for place, row in enumerate(rows):
            pages[place, : len(row.chain.pages)] = row.chain.pages
        settings = [row.request.sampling for row in rows]
        known = self.weights.shape.vocabulary
        slots = self._upload([row.slot for row in rows], np.int64)
        integers = [[s.temperature == 0, min(s.top_k or known, known), signed(r.request.seed)] for s, r in zip(settings, rows, strict=True)]
        self.tables.pages.index_copy_(0, slots, self._upload(pages))
        self.tables.last.index_copy_(0, slots, self._upload([row.ids[-1] for row in rows], np.int64))
        self.tables.integers.index_copy_(0, slots, self._upload(integers, np.int64))
        floats = [[s.temperature or 1.0, s.top_p, s.min_p] for s in settings]
        self.tables.floats.index_copy_(0, slots, self._upload(floats, np.float32))

    # A step of single tokens.

    def _singles(self, rows: list[RunningRequest]) -> Landing:
        lanes = self._lanes(len(rows)) if self._graphs else len(rows)
        control = np.empty((4, lanes), dtype=np.int32)
        control[:, len(rows) :] = [[self._slots], [0], [self.page_count], [0]]
        control[0, : len(rows)] = [row.slot for row in rows]
        control[1, : len(rows)] = [row.computed for row in rows]
        control[2, : len(rows)] = [row.chain.pages[row.computed // self.page_size] for row in rows]
        control[3, : len(rows)] = [row.drawn for row in rows]
        reports = reports_of(row.request.sampling for row in rows)
        if reports or not self._graphs:  # reports are rare and of many kinds: no graph is recorded for them
            tokens, logprobs, measured = self._decode(self._upload(control), reports)
            return Landing(tokens, logprobs, len(rows), reports, measured)
        recording = self._recordings.get(lanes) or self._record(lanes)
        recording.control.copy_(self._upload(control))
        recording.graph.replay()
        return Landing(recording.tokens, recording.logprobs, len(rows))

    def _lanes(self, rows: int) -> int:
        size = next((size for size in SIZES if size >= rows), -(-rows // SIZES[-1]) * SIZES[-1])
        return min(size, self._slots) if self._slots >= rows else rows

    def _record(self, lanes: int) -> Recording:
        """Run the step once on padding lanes to compile and warm up, then record it."""
        empty = np.tile(np.array([[self._slots], [0], [self.page_count], [0]]), lanes)
        control = self._upload(empty)
        self._decode(control)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            tokens, logprobs, _ = self._decode(control)
        self._pool = self._pool or graph.pool()
        self._recordings[lanes] = Recording(graph, control, tokens, logprobs)
        return self._recordings[lanes]

    def _decode(self, control: Tensor, reports: Sequence[str] = ()) -> tuple[Tensor, Tensor, Tensor | None]:
        slots, positions, _, places = control.unbind(0)
        tables, shape = self.tables, self.weights.shape
        tokens = begin(control, tables.last, tables.pages, self.page_size)
        x, delta = self._layers(
            self.weights.embed(tokens),
            lambda qkv, cache, layer: attend_singles(qkv, cache, layer, tables, slots, positions, shape),
        )
        return self._draw(x, delta, slots, places, reports)

    # A step with prompts.

    def _prompts(self, step: Step) -> Landing:
        block = block_for(max(step.counts))
        tokens, positions, slots, ends = self._flatten(step)
        rows = [step.rows[i] for i in step.drawing]
        parts = [tokens, positions, slots, row_blocks(step, ends, block).ravel(), ends[step.drawing] - 1, end_blocks(step).ravel()]
        parts += [np.array([row.slot for row in rows]), np.array([row.drawn for row in rows])]
        on_gpu = self._upload(np.concatenate(parts)).split([len(part) for part in parts])
        x, delta = self._read(on_gpu[:6], block)
        if not rows:
            return Landing(x.new_empty(0), x.new_empty(0), 0)
        reports = reports_of(row.request.sampling for row in rows)
        drawn, logprobs, measured = self._draw(x, delta, on_gpu[6], on_gpu[7], reports)
        return Landing(drawn, logprobs, len(rows), reports, measured)

    def _read(self, pieces: Sequence[Tensor], block: int) -> tuple[Tensor, Tensor]:
        """All layers over tokens of prompts: the residual and the last layer's output of the rows' last tokens. `pieces` are those of
        `PromptSize`, without padding or with it."""
        tokens, positions, slots, blocks, last, last_blocks = pieces

        def attend(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            rotate(qkv, cache, layer, self.tables, slots, positions, self.weights.shape)
            return self._attend_many(qkv, cache, layer, self.tables.pages, blocks.view(-1, 4), block, self.weights.shape)

        def attend_ends(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            rotate(qkv, cache, layer, self.tables, slots, positions, self.weights.shape)
            own, table = qkv.index_select(0, last), self.tables.pages
            return self._attend_many(own, cache, layer, table, last_blocks.view(-1, 4), FEWEST_QUERIES, self.weights.shape)

        return self._layers(self.weights.embed(tokens.long()), attend, ends=Ends(last, attend_ends))

    def _flatten(self, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All tokens one after another: ids, positions, slots; and where each row ends."""
        counts = np.array(step.counts)
        ends = counts.cumsum()
        pieces = (row.ids[row.computed : row.computed + count] for row, count in zip(step.rows, step.counts, strict=True))
        tokens = np.fromiter(chain.from_iterable(pieces), np.int64, step.tokens)
        offset = np.array([row.computed for row in step.rows]) - (ends - counts)
        positions = np.arange(len(tokens)) + offset.repeat(counts)
        return tokens, positions, np.array([row.slot for row in step.rows]).repeat(counts), ends

    # What both have in common.

    def _layers(
        self, x: Tensor, attend: Attend, parts: bool = False, heads: bool = False, ends: Ends | None = None
    ) -> tuple[Tensor, Tensor]:
        """All layers: the residual, and the last layer's output that is not added yet, of the tokens or of their `ends`. `parts`: the
        latter may be parts of a sum; `heads`: what attention is given may be."""
        work, last = self._products, len(self.weights.layers) - 1
        delta: Tensor | None = None
        for number, layer in enumerate(self.weights.layers):
            qkv = work.qkv(layer, work.norm(x, delta, layer.before_attention), heads)
            if ends is not None and number == last:
                x, attend = x.index_select(0, ends.places), ends.attend
            seen = attend(qkv, self.cache[number], layer)
            if not len(x):
                return x, x
            delta = work.out(layer, seen, parts)
            if layer.after_attention is not None:
                delta = work.norm(delta, None, layer.after_attention)
            delta = work.mlp(layer, work.norm(x, delta, layer.before_mlp), parts)
            if layer.after_mlp is not None:
                delta = work.norm(delta, None, layer.after_mlp)
        assert delta is not None
        return x, delta

    def _draw(
        self, x: Tensor, delta: Tensor, slots: Tensor, places: Tensor, reports: Sequence[str] = ()
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        w = self.weights
        logits = self._logits(add_norm(x, delta, w.norm, w.shape.eps))
        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        t = self.tables
        draw_tokens(logits, slots, places, t.floats, t.integers, t.last, tokens, logprobs)
        return tokens, logprobs, measure(logits, t.floats[slots.long(), 0], reports) if reports else None

    def _logits(self, hidden: Tensor) -> Tensor:
        """The output layer, in float32."""
        w = self.weights
        if hidden.is_cuda and hidden.dtype != torch.float32:
            logits = torch.mm(hidden, w.head.t(), out_dtype=torch.float32)
        else:
            logits = torch.mm(hidden.float(), w.head.float().t())
        if w.head_bias is not None:
            logits += w.head_bias
        return w.bounded(logits)
