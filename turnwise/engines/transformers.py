"""Any causal language model of transformers as an engine: its own forward and its own cache, no `generate`.

This is the engine for every model and every machine; correctness and clarity come first. Requests are batched as they come, a finished
row leaves at once, and new ones join at the next step. The model is used as it is: give it the learner's own module and both share the
weights. A trajectory's keys and values stay until `release`, so a prompt that continues the last one costs only its new tokens.

A row holds everything that is needed to continue (its tokens; the draw is a function of seed and position), so the cache can be dropped
at any time: after `refresh`, and when a forward fails. A failed forward is tried again with half the rows; a row that fails alone is a
fault. A vision-language model reads prompts with images through its own forward with their pixels. Prompts of one kind (the same length,
images of the same sizes) run together, then they join the others. What it computed for such a prompt is not reused by the next one: equal
tokens can stand for other images. If the rotary frequencies depend on the length (`turnwise.util.rotary`), only rows with the same
frequencies run together, and a row whose frequencies change is recomputed: what it draws is what the model predicts for that row alone.
Left out: CUDA graphs, paged memory and fused kernels, which the native engine has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.agent.vision import Vision
from turnwise.engines.base import Finish, Request, Response
from turnwise.engines.batch_forward import BatchCache, BatchForward, Prefix, check_batches, from_prefixes
from turnwise.engines.module import evaluating, load_weights, longest
from turnwise.engines.registry import Transformers, register
from turnwise.engines.reports import COLUMNS
from turnwise.engines.sampling import Columns, Noted, measure, reports_of, sample
from turnwise.engines.stopping import Running, need_tokenizer, stop_tokens, wrong_length, wrong_tokens
from turnwise.util.errors import TurnwiseError

SHORTEST_PREFIX = 8  # reusing fewer tokens saves less than the copying costs
GROW_AFTER = 16  # steps without a failure before the batch may double again
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass(slots=True, eq=False)
class RunningRequest(Running):
    """`shift` is the difference between the positions after its images and the count of its tokens."""

    shift: int = 0


@register("transformers")
class TransformersEngine(Transformers):
    """Generation for any causal language model that transformers knows.

    `max_length` bounds prompt and response together (default: what the model was made for). `prefill_tokens` bounds how many prompt
    tokens, padding included, one forward takes. `autocast` computes in another dtype than the weights have. The tokenizer is needed for
    stop strings, and names the end token; `stop_token_ids` replaces the end tokens that tokenizer and model name. `vision` is the
    processor of a vision-language model. Not thread-safe."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_batch: int = 64,
        max_length: int | None = None,
        *,
        prefill_tokens: int = 16384,
        reuse_prefixes: bool = True,
        stop_token_ids: Sequence[int] | None = None,
        autocast: torch.dtype | None = None,
        vision: Vision | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.max_batch, self.prefill_tokens = max_batch, prefill_tokens
        self.max_length = longest(model, max_length)
        if max_batch < 1 or prefill_tokens < 1 or self.max_length < 2:
            raise TurnwiseError(f"engine: {max_batch=}, {prefill_tokens=} and max_length={self.max_length} must be positive")
        named = stop_tokens(tokenizer, getattr(model, "generation_config", None), model.config)
        self.stop_token_ids = named if stop_token_ids is None else frozenset(stop_token_ids)
        self.vision = vision
        self._batch = BatchForward(model, vision)
        self._reuse, self._autocast = reuse_prefixes, autocast
        self._queue: deque[RunningRequest] = deque()
        self._rows: list[RunningRequest] = []
        self._cache: BatchCache | None = None
        self._columns: Columns | None = None
        self._kept: dict[int, Prefix] = {}
        self._done: list[Response] = []
        self._limit = self._ceiling = max_batch
        self._good_steps = 0
        self._closed = False
        self.version, self.reports = 0, tuple(COLUMNS)

    check_model = staticmethod(check_batches)

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._rows) + len(self._done)

    def submit(self, requests: Sequence[Request]) -> None:
        if self._closed:
            raise TurnwiseError("this engine is closed")
        for request in requests:
            need_tokenizer(request, self.tokenizer, "TransformersEngine")
            if request.images and self.vision is None:
                raise TurnwiseError("engine: this prompt shows images, and the engine has no processor: TransformersEngine(…, vision=…)")
            ids = [int(token) for token in request.prompt_ids]
            if problem := wrong_length(ids, self.max_length) or wrong_tokens(ids, self.model.get_input_embeddings().weight.shape[0]):
                self._done.append(Response(request.key, finish=Finish.REFUSED, message=problem))
            else:
                self._queue.append(RunningRequest.of(request, ids, self.max_length, self.tokenizer))

    def poll(self, wait: bool = True) -> list[Response]:
        if not self._done and (self._queue or self._rows):
            precision = torch.autocast(self._batch.device.type, self._autocast) if self._autocast is not None else nullcontext()
            with evaluating(self.model), torch.no_grad(), precision:
                self._step()
                while wait and not self._done:
                    self._step()
        done, self._done = self._done, []
        return done

    def release(self, sequence: int) -> None:
        self._kept.pop(sequence, None)

    def publish(self, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        if weights is not None:
            load_weights(self.model, weights)
        super().publish(version)

    def refresh(self) -> None:
        """Drop all that was computed. Rows in the middle of a response continue with the new weights."""
        self._kept.clear()
        self._put_back(self._stop_running())
        self._limit = self._ceiling = self.max_batch
        self._good_steps = 0

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._done.clear()
        self._kept.clear()
        self._stop_running()

    def _step(self) -> None:
        """New rows read their prompts and draw their first token; then every running row draws one more."""
        if joining := self._next_rows():
            self._attempt(joining)
        if self._rows:
            self._attempt(self._rows)

    def _next_rows(self) -> list[RunningRequest]:
        """The rows that join now: in order of arrival, as many as there is room for, all with a kept prefix or all without."""
        if self._rows and self._cache is not None and not self._cache.joins:
            return []
        joining: list[RunningRequest] = []
        most, continues = 0, False
        while self._queue and len(joining) + len(self._rows) < self._limit:
            row = self._queue[0]
            sight = self._sight(row)
            if any(self._key(row) != self._key(other) for other in (*joining[:1], *self._rows[:1])):
                break
            if joining and sight != self._sight(joining[0]):
                break
            common = self._common(row)
            most = max(most, len(row.ids) - common)
            if joining and (continues != (common > 0) or most * (len(joining) + 1) > self.prefill_tokens):
                break
            continues = common > 0
            joining.append(self._queue.popleft())
        return joining

    def _sight(self, row: RunningRequest) -> Hashable:
        """None for a row without images; rows with the same value can be read together."""
        return self.vision.kind(len(row.ids), row.request.images) if self.vision is not None and row.request.images else None

    def _key(self, row: RunningRequest) -> tuple[int, ...]:
        """Equal for rows that the model rotates by the same frequencies at their current lengths."""
        return self._batch.stretching.key(len(row.ids))

    def _goes_on(self, row: RunningRequest) -> bool:
        """Whether the cached keys of a row are still valid now that it has one more token."""
        return self._key(row) == self._batch.stretching.key(len(row.ids) - 1)

    def _common(self, row: RunningRequest) -> int:
        """How many tokens of this row are computed already."""
        prefix = self._kept.get(row.request.sequence) if not row.request.images else None
        if prefix is not None and self._batch.stretching.key(len(prefix.ids)) != self._key(row):
            prefix = None
        common = prefix.common(row.ids) if prefix is not None else 0
        return common if common >= SHORTEST_PREFIX else 0

    def _attempt(self, rows: list[RunningRequest]) -> None:
        """One forward over new rows or over the running ones. The cache of rows whose forward failed cannot be trusted."""
        running = rows is self._rows
        try:
            self._decode() if running else self._prefill(rows)
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, torch.AcceleratorError):
                self._put_back(rows if running else [*self._rows, *rows])
                self._stop_running()
                raise  # an interrupt, or a lost device: not handled here
            if running:
                self._stop_running()
            failure = f"{type(error).__name__}: {error}"
            no_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in failure for words in NO_MEMORY)
        else:
            self._good_steps += 1
            if self._good_steps >= GROW_AFTER and self._limit < self._ceiling:
                self._limit, self._good_steps = min(self._limit * 2, self._ceiling), 0
            return
        if unfinished := [row for row in rows if not row.finished]:
            self._recover(unfinished, failure, no_memory)

    def _recover(self, rows: list[RunningRequest], failure: str, no_memory: bool) -> None:
        """Try again with fewer rows, or without what was kept; a row that fails alone with nothing left to drop is a fault."""
        could_help = no_memory and bool(self._kept or self._rows)
        self._kept.clear()
        self._good_steps = 0
        if len(rows) == 1 and not could_help:
            message = f"the engine failed on this row of {len(rows[0].ids)} tokens alone: {failure}"
            self._hand_out(rows[0], Finish.FAULT, message)
        else:
            self._limit = max(1, len(self._rows) + len(rows) // 2)
            if no_memory:
                self._ceiling = self._limit
            self._put_back(rows)
        if no_memory and self._batch.device.type == "cuda":
            torch.cuda.empty_cache()

    def _put_back(self, rows: Sequence[RunningRequest]) -> None:
        self._queue.extendleft(row for row in reversed(rows) if not row.finished)

    def _stop_running(self) -> list[RunningRequest]:
        rows, self._rows, self._cache, self._columns = self._rows, [], None, None
        return rows

    def _prefill(self, rows: list[RunningRequest]) -> None:
        if rows[0].request.images:
            logits, cache, shifts = self._batch.look([row.ids for row in rows], [row.request.images for row in rows])
            for row, shift in zip(rows, shifts, strict=True):
                row.shift = shift
        else:
            reused = [self._common(row) for row in rows]
            past = from_prefixes([self._kept[row.request.sequence] for row in rows], reused) if reused[0] else None
            logits, cache = self._batch.read([row.ids[n:] for row, n in zip(rows, reused, strict=True)], past)
        columns = Columns.of([row.request.sampling for row in rows], [row.request.seed for row in rows], logits.device)
        staying, anew = self._draw(rows, logits, columns, cache)
        if self._narrow(cache, rows, staying):
            if self._cache is None:
                self._cache = cache
            else:
                self._cache.join(cache)
            self._rows += [rows[index] for index in staying]
            self._columns = None
        self._put_back(anew)

    def _decode(self) -> None:
        rows = self._rows
        logits, cache = self._batch.read([row.ids[-1:] for row in rows], self._cache, [row.shift for row in rows])
        if self._columns is None:
            self._columns = Columns.of([row.request.sampling for row in rows], [row.request.seed for row in rows], logits.device)
        staying, anew = self._draw(rows, logits, self._columns, cache)
        if len(staying) == len(rows):
            return
        self._stop_running()
        if self._narrow(cache, rows, staying):
            self._rows, self._cache = [rows[index] for index in staying], cache
        self._put_back(anew)

    def _narrow(self, cache: BatchCache, rows: list[RunningRequest], staying: list[int]) -> bool:
        """Keep the staying rows of the cache. False if none is left to continue with: all have left, or they must be recomputed."""
        if len(staying) < len(rows) and not cache.leaves:
            self._put_back([rows[index] for index in staying])
            return False
        cache.select(staying)
        return bool(staying)

    def _draw(
        self, rows: list[RunningRequest], logits: Tensor, columns: Columns, cache: BatchCache
    ) -> tuple[list[int], list[RunningRequest]]:
        """One more token for every row. Hands out the finished rows. Returns the rows that stay and those that must be recomputed."""
        position = torch.tensor([len(row.logprobs) for row in rows], device=logits.device)
        drawn = sample(logits, columns, position)
        reports = reports_of(row.request.sampling for row in rows)
        noted = Noted(reports, measure(logits, columns.temperature, reports)) if reports else None
        for index, (row, token, logprob) in enumerate(zip(rows, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True)):
            if not math.isfinite(logprob):
                message = f"the model's logits after {len(row.ids)} tokens are not numbers: have its weights diverged?"
                self._hand_out(row, Finish.FAULT, message)
                continue
            if not row.logprobs:
                row.version = self.version
            row.ids.append(token)
            row.logprobs.append(logprob)
            if noted is not None:
                noted.into(row.reports, index, row.request.sampling.report)
            if finish := row.ended(token, self.stop_token_ids):
                self._hand_out(row, finish)
        if self._reuse and cache.plain:
            for index, row in enumerate(rows):
                if row.finished and not row.request.images and len(row.ids) > cache.lengths[index]:  # not a row whose logits were NaN
                    # until its trajectory continues or ends; if there are too many, the newest
                    self._kept.pop(row.request.sequence, None)
                    self._kept[row.request.sequence] = cache.prefix(index, row.ids)
                    if len(self._kept) > 4 * self.max_batch:
                        del self._kept[next(iter(self._kept))]
        staying = [index for index, row in enumerate(rows) if not row.finished and self._goes_on(row)]
        return staying, [row for row in rows if not row.finished and not self._goes_on(row)]

    def _hand_out(self, row: RunningRequest, finish: Finish, message: str = "") -> None:
        row.finished = True
        self._done.append(row.response(finish, message))
