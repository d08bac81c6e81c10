"""The GPU runner that keeps the host out of the way: prompts are recorded as graphs too, and a step takes one copy each way.

A prompt step of few tokens is bound by the host, which issues some three hundred launches one by one. So it is recorded for sizes of lists
of tokens, like a decode step for numbers of lanes, and padded to the next size. Padding tokens belong to the padding slot: they write to
its page and attend to it, so that nothing undefined appears anywhere. The layers and the draw are recorded separately, because the first
depends on the number of tokens and the second on the number of rows.

The first step of a size runs as it comes, which compiles its kernels; the second one is recorded. Steps that are too large to be bound by
the host, and steps with reports, run as in `CudaRunner`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.native.balance_kernel import attend_balanced, plan_of
from turnwise.engines.native.cascade import LARGE, Layout, Planner
from turnwise.engines.native.cascade_kernel import Shared, attend_cascade
from turnwise.engines.native.cuda import CudaRunner, originals
from turnwise.engines.native.draw_kernel import draw_tokens
from turnwise.engines.native.head_kernel import Drawing, draw_fused, draw_tiles, fusible
from turnwise.engines.native.head_tiles import draw_product, draw_truncated
from turnwise.engines.native.hopper_attention import attend_rows, available, fits, pays
from turnwise.engines.native.kernels import begin
from turnwise.engines.native.layer_products import LayerProducts, since_hopper
from turnwise.engines.native.mail import Mail, Nothing, Reply, Results, aligned, lay
from turnwise.engines.native.note_kernel import copy_pages, note
from turnwise.engines.native.nucleus_kernel import draw_nucleus
from turnwise.engines.native.paged_attention import attend_singles
from turnwise.engines.native.prompt_attention import attend_prompts
from turnwise.engines.native.prompt_sizes import PromptSize, prompt_size, prompt_sizes
from turnwise.engines.native.requests import RunningRequest, Step, StepResult
from turnwise.engines.native.switches import Switches
from turnwise.engines.native.weights import Layer, Weights
from turnwise.engines.sampling import reports_of, signed

SETTINGS = 9  # numbers that belong to a slot, besides its pages


class RecordedRunner(CudaRunner):
    """Runs steps over `page_count` pages as `CudaRunner` does, in the ways that `switches` name."""

    def __init__(
        self,
        weights: Weights,
        slots: int,
        longest: int,
        page_count: int,
        page_size: int,
        graphs: bool,
        switches: Switches | None = None,
        *,
        kind: str = "model",
    ):
        super().__init__(weights, slots, longest, page_count, page_size, graphs, kind=kind)
        self.switches = switches or Switches(record=True)
        self._products = LayerProducts(weights, self.switches)
        recent = since_hopper(weights.device) or weights.device.type != "cuda"
        if self.switches.prompts and recent and self._stored[0] == weights.dtype:  # it reads pages as they are
            self._attend_many = attend_prompts
        self._streams = fits(weights, page_size, self._stored[0]) and available(weights.device)
        self._sizes = prompt_sizes(weights) if self.switches.record else ()
        self._lane_room = aligned(self._lanes(slots))
        self._record_size = SETTINGS + self.tables.pages.shape[1]
        self._filler = min(page_size, longest)
        largest = max((PromptSize(size, 16, slots, min(16, self._filler)).room for size in self._sizes), default=0)
        plan = Layout.of(self._lane_room, weights.shape.group)
        decode = 4 * self._lane_room + (sum(map(aligned, plan.sizes)) if plan else 0)
        self._room = 2 * self._lane_room + max(largest, decode)
        token = 2 * weights.shape.kv_heads * self._stored[1] * self._stored[0].itemsize
        self._planner = Planner(page_size, token if self.switches.cascade == "auto" else 0)
        self._mail = Mail(self._room + slots * (aligned(self._record_size) + 4), weights.device)
        self._ends = torch.zeros(2, self._lane_room, weights.shape.hidden, dtype=weights.dtype, device=weights.device)
        self._arrivals = torch.zeros(self._lane_room * weights.shape.kv_heads, dtype=torch.int32, device=weights.device)
        self._truncates = [False] * (slots + 1)
        self._graphs_of: dict[Any, Any] = {}  # None after the first use, then what is replayed
        self._results: dict[Any, Results] = {}

    def _forget(self) -> None:
        super()._forget()
        self._graphs_of.clear()

    def launch(self, step: Step) -> StepResult:
        for row in step.admitted:
            s = row.request.sampling
            self._truncates[row.slot] = s.temperature > 0 and bool(s.top_k or s.top_p < 1 or s.min_p)
        rows = [step.rows[i] for i in step.drawing]
        single = max(step.counts) == 1 and len(rows) == len(step.rows)
        size = None if single else prompt_size(self._sizes, step, self._slots, self._filler)
        extra = aligned(len(step.admitted) * self._record_size) + 2 * len(step.copies)
        if self._room + extra > self._mail.size or reports_of(row.request.sampling for row in rows):
            return super().launch(step)
        with torch.no_grad():
            if single:
                return self._singles_by_mail(step, rows)
            if size is not None:
                return self._prompts_by_mail(step, rows, size)
        return super().launch(step)

    # What travels with a step.

    def _send(self, step: Step, host: np.ndarray, used: int) -> None:
        """Settings of new rows and copies of pages follow the step's own numbers; everything goes in one copy."""
        if not step.admitted and not step.copies:
            self._mail.send(used)
            return
        records, pairs = self._records(step.admitted), np.array(originals(step.copies), dtype=np.int32).reshape(-1, 2)
        place = lay([records.size, pairs.size], aligned(used))
        host[place[0]], host[place[1]] = records.ravel(), pairs.ravel()
        self._mail.send(place[1].stop)
        if len(records):
            note(self._mail.box[place[0]].view(records.shape), self.tables)
        if len(pairs):
            copy_pages(self.cache, self._mail.box[place[1]].view(-1, 2))

    def _records(self, rows: list[RunningRequest]) -> np.ndarray:
        records = np.full((len(rows), self._record_size), self.page_count, dtype=np.int32)
        if not rows:
            return records
        known, settings = self.weights.shape.vocabulary, [row.request.sampling for row in rows]
        records[:, 0] = [row.slot for row in rows]
        records[:, 1] = [row.ids[-1] for row in rows]
        records[:, 2:4] = [(s.temperature == 0, min(s.top_k or known, known)) for s in settings]
        records[:, 4:6] = np.array([[signed(row.request.seed)] for row in rows], dtype=np.int64).view(np.int32)
        records[:, 6:9] = np.array([(s.temperature or 1.0, s.top_p, s.min_p) for s in settings], dtype=np.float32).view(np.int32)
        counts = np.array([len(row.chain.pages) for row in rows])
        pages = np.fromiter(chain.from_iterable(row.chain.pages for row in rows), np.int32, int(counts.sum()))
        records[:, SETTINGS:][np.arange(self._record_size - SETTINGS) < counts[:, None]] = pages
        return records

    def _way(self, rows: list[RunningRequest], lanes: int) -> str:
        truncated = "nucleus" if self.switches.nucleus else "rows"
        return truncated if any(self._truncates[row.slot] for row in rows) else self.switches.way(lanes)

    def _run(self, key: Any, work: Callable[[], None]) -> None:
        """Do the work: as it comes for the first time, recorded the second time, replayed from then on."""
        found = self._graphs_of.get(key)
        if found is not None:
            found.replay()
            return
        if key not in self._graphs_of or not self._graphs or self.weights.device.type != "cuda":
            self._graphs_of[key] = None
            work()
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = self._pool or graph.pool()
        self._graphs_of[key] = graph
        graph.replay()

    def _results_of(self, key: Any, lanes: int) -> Results:
        if key not in self._results:
            self._results[key] = Results(lanes, self.weights.device)
        return self._results[key]

    # A step of single tokens.

    def _singles_by_mail(self, step: Step, rows: list[RunningRequest]) -> Reply:
        lanes, count = self._lanes(len(rows)), len(rows)
        layout = self._layout(lanes)
        groups = self._planner.groups(rows) if layout is not None else []
        positions = np.array([row.computed for row in rows])
        stream = not groups and self._takes_rows(lanes) and pays(positions, self.weights.shape.kv_heads)
        key = "decode", lanes, self._way(rows, lanes), "cascade" if groups else "stream" if stream else "single"
        places = lay([4 * lanes, *(layout.sizes if layout is not None and groups else ())], 2 * self._lane_room)
        host = self._mail.open()
        control = host[places[0]].reshape(4, lanes)
        control[:, count:] = [[self._slots], [0], [self.page_count], [0]]
        control[0, :count] = [row.slot for row in rows]
        control[1, :count] = positions
        control[2, :count] = [row.chain.pages[row.computed // self.page_size] for row in rows]
        control[3, :count] = [row.drawn for row in rows]
        if layout is not None and groups:
            host[places[1]], host[places[2]] = layout.write(groups)
        self._send(step, host, places[-1].stop)
        results = self._results_of(key, lanes)
        pieces = [self._mail.box[place] for place in places]
        plan = Shared(pieces[1], pieces[2].view(layout.blocks, -1)) if layout is not None and groups else None
        self._run(key, lambda: self._decode_into(pieces[0].view(4, lanes), results, key[2], plan, stream))
        return Reply(results, count)

    def _takes_rows(self, lanes: int) -> bool:
        """Whether attention of so many lanes may be `attend_rows`: it is given whole queries, keys and values."""
        return self._streams and self.switches.stream and not self._products.splits_qkv(self.weights.layers[0], lanes)

    def _layout(self, lanes: int) -> Layout | None:
        """How plans are written down for a step with so many lanes, if they may read pages together."""
        wanted = self.switches.cascade is True or (self.switches.cascade == "auto" and lanes >= LARGE)
        return Layout.of(lanes, self.weights.shape.group) if wanted else None

    def _decode_into(self, control: Tensor, results: Results, way: str, plan: Shared | None, stream: bool = False) -> None:
        slots, positions, _, places = control.unbind(0)
        tables, shape = self.tables, self.weights.shape
        arrivals = self._arrivals if self.switches.merge else None
        tokens = begin(control, tables.last, tables.pages, self.page_size)
        windows = {layer.window for layer in self.weights.layers} if self.switches.balance and plan is None else ()
        plans = {window: plan_of(slots, positions, self.page_size, window, shape.kv_heads) for window in windows}

        def attend(qkv: Tensor, cache: Tensor, layer: Layer) -> Tensor:
            if plans:
                return attend_balanced(qkv, cache, layer, tables, plans[layer.window], shape, self._arrivals)
            if stream:
                return attend_rows(qkv, cache, layer, tables, slots, positions, shape, self._arrivals)
            if plan is None:
                return attend_singles(qkv, cache, layer, tables, slots, positions, shape, arrivals)
            return attend_cascade(qkv, cache, layer, tables, slots, positions, shape, arrivals, plan)

        x, delta = self._layers(self.weights.embed(tokens), attend, parts=True, heads=plan is None)
        self._draw_into(x, delta, slots, places, results, way)

    # A step with prompts.

    def _prompts_by_mail(self, step: Step, rows: list[RunningRequest], size: PromptSize) -> StepResult:
        host, lanes, count = self._mail.open(), self._lanes(len(step.drawing)), len(rows)
        host[:lanes] = self._slots
        host[self._lane_room : self._lane_room + lanes] = 0
        host[:count] = [row.slot for row in rows]
        host[self._lane_room : self._lane_room + count] = [row.drawn for row in rows]
        places = lay(size.pieces, 2 * self._lane_room)
        tokens, positions, slots, ends = self._flatten(step)
        for place, piece in zip(places, size.pad(tokens, positions, slots, ends, step, self._slots), strict=True):
            host[place] = piece
        self._send(step, host, places[-1].stop)
        self._run(("prompt", size), lambda: self._read_prompts(size, [self._mail.box[place] for place in places]))
        if not rows:
            return Nothing()
        key = "draw", lanes, self._way(rows, lanes)
        results = self._results_of(key, lanes)
        self._run(key, lambda: self._draw_ends(lanes, results, key[2]))
        return Reply(results, count)

    def _read_prompts(self, size: PromptSize, pieces: list[Tensor]) -> None:
        """All layers over the tokens; of each row's last token, what the draw needs is kept."""
        x, delta = self._read(pieces, size.block)
        self._ends[0, : len(x)].copy_(x)
        self._ends[1, : len(x)].copy_(delta)

    def _draw_ends(self, lanes: int, results: Results, way: str) -> None:
        box, room = self._mail.box, self._lane_room
        self._draw_into(self._ends[0, :lanes], self._ends[1, :lanes], box[:lanes], box[room : room + lanes], results, way)

    def _draw_into(self, x: Tensor, delta: Tensor, slots: Tensor, places: Tensor, results: Results, way: str) -> None:
        w, t = self.weights, self.tables
        hidden = self._products.norm(x, delta, w.norm)
        drawing = Drawing(slots, places, t.floats, t.integers, t.last, results.tokens, results.logprobs)
        if way == "fused" and w.shape.softcap is None and fusible(hidden, w.head):
            draw_fused(hidden, w.head, w.head_bias, drawing)
        elif way == "product" and self._products.takes_head(hidden, w):
            draw_product(hidden, w.head, drawing, overlap=self._products.overlap)
        elif way == "rows":
            draw_tokens(self._logits(hidden), *drawing)
        elif way == "nucleus" and self.switches.way(len(hidden)) == "product" and self._products.takes_head(hidden, w):
            draw_truncated(hidden, w.head, drawing, overlap=self._products.overlap)
        elif way == "nucleus":
            draw_nucleus(self._logits(hidden), drawing, overlap=self._products.overlap)
        else:
            draw_tiles(self._logits(hidden), drawing)
