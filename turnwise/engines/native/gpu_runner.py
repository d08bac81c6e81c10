"""The model's forward on a GPU: Triton kernels between the matrix products, and CUDA graphs around a step.

A step of single tokens is some three hundred small launches, more than a host can issue in the time the GPU needs for them, so it is
captured as a CUDA graph for each size of batch and replayed. A captured step reads what it works on from a small table of the batch (which
slot, which position), and everything that belongs to a slot stays on the GPU: its pages, its settings, its last token. The next step can
therefore start before the host has seen the tokens of the last one. A step takes one copy to the GPU and one back (`staging.py`).

A prompt step of few tokens is bound by the host as well. It is captured for sizes of lists of tokens and padded to the next size. Padding
tokens belong to the padding slot: they write to its page and attend to it, so that nothing undefined appears anywhere. The layers and the
sampling are captured separately, because the first depends on the number of tokens and the second on the number of rows.

The first step of a size runs as it comes, which compiles its kernels; the second one is captured. Steps that are too large to be bound by
the host, and steps with reports, always run as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.native.layer_products import LayerProducts
from turnwise.engines.native.prompt_sizes import PromptSize, block_for, end_blocks, prompt_size, prompt_sizes, row_blocks
from turnwise.engines.native.requests import Ready, RunningRequest, Step, StepResult
from turnwise.engines.native.staging import Results, StagedResult, StagingBuffer, aligned, lay
from turnwise.engines.native.weights import Layer, Weights
from turnwise.engines.sampling import Noted, measure, reports_of, signed
from turnwise.kernels.attend import attend_prompts, attend_singles
from turnwise.kernels.cache_8bit import stored
from turnwise.kernels.gpu import FEWEST_QUERIES, rows_and_stages, shared_memory
from turnwise.kernels.hopper.sample import draw_product, draw_truncated
from turnwise.kernels.layer import rotate
from turnwise.kernels.sample_tiles import Drawing, draw_tiles
from turnwise.kernels.sample_top_p import draw_nucleus
from turnwise.kernels.tables import begin, copy_pages, note

BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # rows of a captured step; above the last, multiples of it
FEW_ROWS = 64  # up to here, sampling by tiles of written logits is faster than the output layer's own product on a Hopper GPU
SETTINGS = 9  # numbers that belong to a slot, besides its pages
Attend = Callable[[Tensor, Tensor, Layer], Tensor]


@dataclass(slots=True)
class BlockTables:
    """What the GPU stores by slot, and the rotations by position. The last slot is for padding: unused rows of a batch work on it."""

    cos: tuple[Tensor, ...]  # one entry per rotation of the model; layers without one have an entry that turns nothing
    sin: tuple[Tensor, ...]
    pages: Tensor  # int32 [slots + 1, pages of the longest sequence]
    last: Tensor  # int64 [slots + 1]: the last token
    floats: Tensor  # [slots + 1, 3]: temperature, top-p, min-p
    integers: Tensor  # int64 [slots + 1, 3]: greedy, top-k, seed


class Ends(NamedTuple):
    """Of which tokens the next one is sampled. The last layer computes keys and values of all tokens, and the rest of these alone: `attend`
    is its attention."""

    places: Tensor
    attend: Attend


def originals(copies: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Source and target pages of copies that are all made at once: a copy of a page that is itself a copy is taken from the original."""
    sources: dict[int, int] = {}
    for source, target, _ in copies:
        sources[target] = sources.get(source, source)
    return [(source, target) for target, source in sources.items()]


class GpuRunner:
    """Runs steps over `page_count` pages of `page_size` tokens, and one more for padding. `graphs=False`: nothing is captured."""

    mixed = False
    ahead = 1

    def __init__(self, weights: Weights, slots: int, longest: int, page_count: int, page_size: int, graphs: bool, *, kind: str = "model"):
        self.weights, self.page_count, self.page_size = weights, page_count, page_size
        self._slots, self._graphs = slots, graphs
        self._stored = stored(kind, weights.dtype, weights.shape.head_dim)
        self._check_attention()
        self._products = LayerProducts(weights)
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
        self._sizes = prompt_sizes(weights)
        self._most_rows = aligned(self._batch_size(slots))
        self._record_size = SETTINGS + width
        self._filler = min(page_size, longest)
        largest = max((PromptSize(size, FEWEST_QUERIES, slots, min(FEWEST_QUERIES, self._filler)).room for size in self._sizes), default=0)
        self._room = 2 * self._most_rows + max(largest, 4 * self._most_rows)
        self._staging = StagingBuffer(self._room + slots * (aligned(self._record_size) + 4), device)
        self._ends = torch.zeros(2, self._most_rows, weights.shape.hidden, dtype=weights.dtype, device=device)  # residual, what is added
        self._truncates = [False] * (slots + 1)
        self._captured: dict[Any, Any] = {}  # by kind and size of a step: None after its first use, then the graph
        self._pool: Any = None
        self._results: dict[Any, Results] = {}

    def _check_attention(self) -> None:
        """An error if this GPU's SMs have too little memory for attention over this model's heads."""
        shape, dtype = self.weights.shape, self._stored[0]
        page_bytes, item = 2 * self.page_size * shape.head_dim * dtype.itemsize, self.weights.dtype.itemsize
        memory = shared_memory(self.weights.device)
        rows_and_stages(memory, FEWEST_QUERIES, shape.head_dim, self.page_size, page_bytes, item, dtype == torch.int8)

    # The cache and the weights.

    @property
    def cache(self) -> Tensor:
        """Keys and values; allocated when they are first needed, and after `sleep`."""
        if self._cache is None:
            shape = self.weights.shape
            dtype, width = self._stored
            size = (shape.layers, 2, self.page_count + 1, shape.kv_heads, self.page_size, width)
            self._cache = torch.zeros(size, dtype=dtype, device=self.weights.device)
        return self._cache

    def update(self) -> None:
        if self.weights.update():
            self._drop_graphs()
        self._shift_keys()

    def _shift_keys(self) -> None:
        if self._stored[0] == torch.int8:
            with torch.no_grad():
                self.weights.shift_keys(self.tables.pages.shape[1] * self.page_size)

    def sleep(self) -> None:
        self._drop_graphs()  # captured steps point into the cache
        self._cache = None
        if self.weights.device.type == "cuda":
            torch.cuda.empty_cache()

    def clean(self) -> None:
        if self._cache is not None:
            self._cache.zero_()

    def _drop_graphs(self) -> None:
        self._captured.clear()
        self._pool = None

    # A step.

    def run(self, step: Step) -> StepResult:
        for row in step.admitted:
            s = row.request.sampling
            self._truncates[row.slot] = s.temperature > 0 and bool(s.top_k or s.top_p < 1 or s.min_p)
        rows = [step.rows[i] for i in step.drawing]
        reports = reports_of(row.request.sampling for row in rows)
        with torch.no_grad():
            if max(step.counts) == 1 and len(rows) == len(step.rows):
                return self._decode_step(step, rows, reports)
            size = None if reports else prompt_size(self._sizes, step, self._slots, self._filler)
            return self._large_prompts(step, rows, reports) if size is None else self._prompts(step, rows, size)

    def _send(self, step: Step, host: np.ndarray, used: int) -> None:
        """Settings of new rows and copies of pages follow the step's own numbers; everything goes in one copy."""
        if not step.admitted and not step.copies:
            self._staging.send(used)
            return
        records, pairs = self._records(step.admitted), np.array(originals(step.copies), dtype=np.int32).reshape(-1, 2)
        places = lay([records.size, pairs.size], aligned(used))
        fits = places[1].stop <= self._staging.size
        host[places[0]] = records.ravel()
        if fits:
            host[places[1]] = pairs.ravel()
        self._staging.send(places[1].stop if fits else places[0].stop)
        if len(records):
            note(self._staging.device[places[0]].view(records.shape), self.tables)
        if len(pairs):
            copy_pages(self.cache, self._staging.device[places[1]].view(-1, 2) if fits else self._upload(pairs))

    def _records(self, rows: list[RunningRequest]) -> np.ndarray:
        """Settings and pages of rows with a new slot: [rows, SETTINGS + pages] int32, as `tables.note` reads them."""
        records = np.full((len(rows), self._record_size), self.page_count, dtype=np.int32)
        if not rows:
            return records
        vocabulary, settings = self.weights.shape.vocabulary, [row.request.sampling for row in rows]
        records[:, 0] = [row.slot for row in rows]
        records[:, 1] = [row.ids[-1] for row in rows]
        records[:, 2:4] = [(s.temperature == 0, min(s.top_k or vocabulary, vocabulary)) for s in settings]
        records[:, 4:6] = np.array([[signed(row.request.seed)] for row in rows], dtype=np.int64).view(np.int32)
        records[:, 6:9] = np.array([(s.temperature or 1.0, s.top_p, s.min_p) for s in settings], dtype=np.float32).view(np.int32)
        counts = np.array([len(row.chain.pages) for row in rows])
        pages = np.fromiter(chain.from_iterable(row.chain.pages for row in rows), np.int32, int(counts.sum()))
        records[:, SETTINGS:][np.arange(self._record_size - SETTINGS) < counts[:, None]] = pages
        return records

    def _upload(self, values: Any, dtype: Any = np.int32) -> Tensor:
        """Copies to the GPU, without waiting for its current work."""
        host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
        return host.pin_memory().to(self.weights.device, non_blocking=True) if self.weights.device.type == "cuda" else host

    def _replay(self, key: Any, work: Callable[[], object]) -> None:
        """Do the work: as it comes for the first time, captured the second time, replayed from then on."""
        graph = self._captured.get(key)
        if graph is not None:
            graph.replay()
            return
        if key not in self._captured or not self._graphs or self.weights.device.type != "cuda":
            self._captured[key] = None
            work()
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = self._pool or graph.pool()
        self._captured[key] = graph
        graph.replay()

    def _results_of(self, key: Any, batch: int) -> Results:
        if key not in self._results:
            self._results[key] = Results(batch, self.weights.device)
        return self._results[key]

    def _batch_size(self, rows: int) -> int:
        """The size of batch that so many rows are padded to."""
        size = next((size for size in BATCHES if size >= rows), -(-rows // BATCHES[-1]) * BATCHES[-1])
        return min(size, self._slots) if self._slots >= rows else rows

    # A step of single tokens.

    def _decode_step(self, step: Step, rows: list[RunningRequest], reports: Sequence[str]) -> StepResult:
        batch, count = self._batch_size(len(rows)), len(rows)
        truncates = any(self._truncates[row.slot] for row in rows)
        key = "decode", batch, truncates
        (piece,) = lay([4 * batch], 2 * self._most_rows)
        host = self._staging.open()
        control = host[piece].reshape(4, batch)
        control[:, count:] = [[self._slots], [0], [self.page_count], [0]]
        control[0, :count] = [row.slot for row in rows]
        control[1, :count] = [row.computed for row in rows]
        control[2, :count] = [row.chain.pages[row.computed // self.page_size] for row in rows]
        control[3, :count] = [row.drawn for row in rows]
        self._send(step, host, piece.stop)
        results, on_gpu = self._results_of(key, batch), self._staging.device[piece].view(4, batch)
        if reports:  # they are rare and of many kinds: no graph is captured for them
            return StagedResult(results, count, self._decode(on_gpu, results, truncates, reports))
        self._replay(key, lambda: self._decode(on_gpu, results, truncates))
        return StagedResult(results, count)

    def _decode(self, control: Tensor, results: Results, truncates: bool, reports: Sequence[str] = ()) -> Noted | None:
        """One token of every row. `control` [4, batch]: slot, position, page of that position, index of the sampled token."""
        slots, positions, _, places = control.unbind(0)
        tables, shape = self.tables, self.weights.shape
        tokens = begin(control, tables.last, tables.pages, self.page_size)

        def attend(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            return attend_singles(qkv, cache, layer, tables, slots, positions, shape)

        x, delta = self._layers(self.weights.embed(tokens), attend, parts=True)
        return self._sample(x, delta, slots, places, results, truncates, reports)

    # A step with prompts.

    def _prompts(self, step: Step, rows: list[RunningRequest], size: PromptSize) -> StepResult:
        """Prompts that are padded to a captured size."""
        host, batch, count, most = self._staging.open(), self._batch_size(len(rows)), len(rows), self._most_rows
        host[:batch] = self._slots
        host[most : most + batch] = 0
        host[:count] = [row.slot for row in rows]
        host[most : most + count] = [row.drawn for row in rows]
        places = lay(size.pieces, 2 * most)
        tokens, positions, slots, ends = self._flatten(step)
        for place, piece in zip(places, size.pad(tokens, positions, slots, ends, step, self._slots), strict=True):
            host[place] = piece
        self._send(step, host, places[-1].stop)
        self._replay(("prompt", size), lambda: self._read_captured(size, [self._staging.device[place] for place in places]))
        if not rows:
            return Ready()
        truncates = any(self._truncates[row.slot] for row in rows)
        key = "sample", batch, truncates
        results = self._results_of(key, batch)
        self._replay(key, lambda: self._sample_ends(batch, results, truncates))
        return StagedResult(results, count)

    def _read_captured(self, size: PromptSize, pieces: list[Tensor]) -> None:
        """All layers over the tokens; of each row's last token, what sampling needs is kept."""
        x, delta = self._read(pieces, size.block)
        self._ends[0, : len(x)].copy_(x)
        self._ends[1, : len(x)].copy_(delta)

    def _sample_ends(self, batch: int, results: Results, truncates: bool) -> None:
        on_gpu, most = self._staging.device, self._most_rows
        self._sample(self._ends[0, :batch], self._ends[1, :batch], on_gpu[:batch], on_gpu[most : most + batch], results, truncates)

    def _large_prompts(self, step: Step, rows: list[RunningRequest], reports: Sequence[str]) -> StepResult:
        """Prompts as they come, without padding."""
        if step.admitted or step.copies:
            self._send(step, self._staging.open(), 0)
        block = block_for(max(step.counts))
        tokens, positions, slots, ends = self._flatten(step)
        parts = [tokens, positions, slots, row_blocks(step, ends, block).ravel(), ends[step.drawing] - 1, end_blocks(step).ravel()]
        parts += [np.array([row.slot for row in rows]), np.array([row.drawn for row in rows])]
        on_gpu = self._upload(np.concatenate(parts)).split([len(part) for part in parts])
        x, delta = self._read(on_gpu[:6], block)
        if not rows:
            return Ready()
        results = Results(len(rows), self.weights.device)
        truncates = any(self._truncates[row.slot] for row in rows)
        return StagedResult(results, len(rows), self._sample(x, delta, on_gpu[6], on_gpu[7], results, truncates, reports))

    def _read(self, pieces: Sequence[Tensor], block: int) -> tuple[Tensor, Tensor]:
        """All layers over tokens of prompts: the residual and the last layer's output of the rows' last tokens. `pieces` are those of
        `PromptSize`, without padding or with it."""
        tokens, positions, slots, blocks, last, last_blocks = pieces

        def attend(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            rotate(qkv, cache, layer, self.tables, slots, positions, self.weights.shape)
            return attend_prompts(qkv, cache, layer, self.tables.pages, blocks.view(-1, 4), block, self.weights.shape)

        def attend_ends(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            rotate(qkv, cache, layer, self.tables, slots, positions, self.weights.shape)
            ends, table = qkv.index_select(0, last), self.tables.pages
            return attend_prompts(ends, cache, layer, table, last_blocks.view(-1, 4), FEWEST_QUERIES, self.weights.shape)

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

    def _layers(self, x: Tensor, attend: Attend, parts: bool = False, ends: Ends | None = None) -> tuple[Tensor, Tensor]:
        """All layers: the residual [rows, hidden], and the last layer's output that is not added yet, of the tokens or of their `ends`.
        `parts`: products may stay parts of a sum, [parts, rows, hidden], until the next norm or attention adds them up."""
        work, last = self._products, len(self.weights.layers) - 1
        delta: Tensor | None = None
        for number, layer in enumerate(self.weights.layers):
            qkv = work.qkv(layer, work.norm(x, delta, layer.before_attention), parts)
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

    def _sample(
        self, x: Tensor, delta: Tensor, slots: Tensor, places: Tensor, results: Results, truncates: bool, reports: Sequence[str] = ()
    ) -> Noted | None:
        """The output layer and one token per row, by the way that suits the GPU and the settings; see `kernels/sample.py`."""
        w, t, work = self.weights, self.tables, self._products
        hidden = work.norm(x, delta, w.norm)
        to = Drawing(slots, places, t.floats, t.integers, t.last, results.tokens, results.logprobs)
        if not reports and len(hidden) > FEW_ROWS and work.takes_head(hidden, w):
            (draw_truncated if truncates else draw_product)(hidden, w.head, to, overlap=work.overlap)
            return None
        logits = self._logits(hidden)
        if truncates:
            draw_nucleus(logits, to, overlap=work.overlap)
        else:
            draw_tiles(logits, to)
        if not reports:
            return None
        return Noted(reports, measure(logits, t.floats[slots.long(), 0], reports).to("cpu", non_blocking=True))

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
