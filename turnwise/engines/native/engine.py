"""The native engine: rows join, share what is computed, and leave.

`_step` is its spine: schedule, run, postprocess. `_schedule` puts together one forward: the next token of every running row and as many
tokens of new prompts as the budget allows. `_run` hands it to the runner of the device (`cpu_runner.py`, `gpu_runner.py`), which computes
the layers and samples the tokens. `_postprocess` reads those tokens, and rows that are finished leave.

A row takes a slot when it is admitted and gives it back the moment it is finished. What it computed stays for the next turn of its
trajectory until `release`, or until the memory is needed: then the least recently used goes first. If that is not enough, the youngest row
returns to the queue and reads its tokens again later. A row holds everything that is needed to continue, so the cache can be dropped at any
time. `memory.py` sizes the cache; `sleep` frees it.

On a GPU the next step is launched before the tokens of the last one have reached the host, so a row that ended with a stop token has been
computed one time more than needed; that token is ignored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from turnwise.config.options import Help
from turnwise.engines.base import Finish, Request, Response
from turnwise.engines.module import load_weights
from turnwise.engines.native.cache_pages import CachePages, Chain
from turnwise.engines.native.chains import Chains
from turnwise.engines.native.families import supports
from turnwise.engines.native.memory import make_runner, own_bytes
from turnwise.engines.native.requests import Runner, RunningRequest, Step, StepResult
from turnwise.engines.native.weights import Weights
from turnwise.engines.prefill import default_prefill
from turnwise.engines.registry import Native, register
from turnwise.engines.reports import COLUMNS
from turnwise.engines.stopping import need_tokenizer, stop_tokens, wrong_length, wrong_tokens
from turnwise.util.errors import TurnwiseError
from turnwise.util.prefix import Prefix, extend_to

GRAIN = 32  # tokens: the granularity of common prefixes if pages are longer than that
FEWEST_PREFILL_TOKENS = 64
EARLY = 8  # requests, after which an engine on a GPU is asked whether it starts while others follow
EARLY_ROWS, EARLY_TOKENS = 16, 4096  # what is worth a step of its own: so many prompts, or so many tokens in them
EARLY_FLIGHTS = 3  # steps under way, up to which one more is launched early


@register("native")
class NativeEngine(Native):
    """Generation with the learner's own weights in place: fast, for the Llama, Qwen, Gemma 3 and SmolLM3 families.

    `model` is the learner's own module, whose weights are used in place. `max_length` bounds prompt and response together (default: what
    the model was made for); `max_batch` is how many rows run at once; `prefill_tokens` how many prompt tokens one forward takes.
    `cache_memory` is the memory for keys and values: bytes, or up to 1.0 the part of a GPU's free memory (default 0.5; on a CPU a quarter
    of all memory). `cache_dtype="8bit"` stores them as integers of 8 bits: half the memory of bf16, and log-probs that differ a little from
    the learner's, so it needs importance weights. `dtype` computes in another precision than the weights have, at the cost of a copy.
    `graphs=False` runs a GPU without CUDA graphs. The tokenizer is needed for stop strings, and names the end token; `stop_token_ids`
    replaces the end tokens that it and the model name. Not thread-safe."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_batch: int = 64,
        max_length: int | None = None,
        *,
        prefill_tokens: Annotated[int | None, Help("prompt tokens per forward pass", low=1)] = None,
        cache_memory: Annotated[float | None, Help("bytes for keys and values, or up to 1.0 a part of a GPU's free memory", low=0)] = None,
        cache_dtype: Annotated[Literal["model", "8bit"], Help("how keys and values are stored: as computed, or in 8 bits")] = "model",
        stop_token_ids: Sequence[int] | None = None,
        dtype: Annotated[torch.dtype | None, Help("another precision than that of the weights, at the cost of a copy")] = None,
        graphs: Annotated[bool, Help("capture the steps of a GPU as CUDA graphs")] = True,
    ):
        self.weights = Weights(model, dtype)
        self.model, self.tokenizer = model, tokenizer
        self.max_batch, self.max_length = max_batch, max_length or self.weights.shape.longest
        if max_batch < 1 or self.max_length < 2 or (prefill_tokens is not None and prefill_tokens < 1):
            raise TurnwiseError(f"engine: {max_batch=}, {prefill_tokens=} and max_length={self.max_length} must be positive")
        named = stop_tokens(tokenizer, getattr(model, "generation_config", None), model.config)
        self.stop_token_ids = named if stop_token_ids is None else frozenset(stop_token_ids)
        self._runner: Runner = make_runner(self.weights, max_batch, self.max_length, cache_memory, graphs, cache_dtype)
        self.prefill_tokens = prefill_tokens or default_prefill(own_bytes(self.weights.device))
        self._pages = CachePages(self._runner.page_count, self._runner.page_size, GRAIN if self._runner.mixed else self._runner.page_size)
        self._chains = Chains(self._pages)
        self.max_length = min(self.max_length, self._pages.count * self._pages.size)
        self._queue: deque[RunningRequest] = deque()
        self._rows: list[RunningRequest] = []
        self._free_slots = list(range(max_batch))
        self._flights: deque[tuple[list[RunningRequest], StepResult]] = deque()
        self._done: list[Response] = []
        self._admitted: list[RunningRequest] = []
        self._leaving: dict[int, tuple[RunningRequest, bool]] = {}  # by sequence: finished, but what they computed is not kept yet
        self._since_prefill = 0
        self._garbage: list[Any] = []  # what was forgotten and is not freed yet: that is done while a GPU works
        self._faulted = False  # something that is not a number may be in the cache
        self._closed = False
        self.version, self.reports = 0, tuple(COLUMNS)
        self.early = EARLY if self._runner.ahead and not self._runner.mixed else 0

    unsupported = staticmethod(supports)

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._rows) + len(self._done)

    def submit(self, requests: Sequence[Request]) -> None:
        if self._closed:
            raise TurnwiseError("this engine is closed")
        for request in requests:
            need_tokenizer(request, self.tokenizer, "NativeEngine")
            self._keep(request.sequence)
            ids, unchecked = self._read(request)
            if problem := wrong_length(ids, self.max_length, ", a larger max_length or more cache_memory"):
                del ids[len(ids) - unchecked :]  # they may be those of a trajectory
                self._done.append(Response(request.key, finish=Finish.REFUSED, message=problem))
                continue
            row = RunningRequest.of(request, ids, self.max_length, self.tokenizer)
            row.unchecked = unchecked
            self._queue.append(row)

    def _read(self, request: Request) -> tuple[list[int], int]:
        """A prompt as a list, and how many tokens at its end are to be checked: what follows on those that are kept of its trajectory."""
        prompt, ids = request.prompt_ids, self._chains.known(request.sequence)
        if isinstance(prompt, (list, Prefix)) and ids is not None and len(ids) < len(prompt):
            before, whole = len(ids), prompt if isinstance(prompt, list) else prompt.whole
            whole = whole if len(whole) == len(prompt) else prompt[:]
            if {int}.issuperset(map(type, whole[before:])) and extend_to(ids, whole):
                return ids, len(ids) - before
        fresh = list(prompt)
        return fresh, len(fresh)

    def _check(self, row: RunningRequest) -> bool:
        """Whether a prompt's tokens are in the model's vocabulary; plain integers afterwards. This is asked when its turn has come,
        while the GPU works on those before it."""
        ids, first = row.ids, len(row.ids) - row.unchecked
        fresh = ids[first:]
        row.unchecked = 0
        if set(map(type, fresh)) - {int}:  # numpy integers, for example
            fresh = ids[first:] = [int(token) for token in fresh]
        message = wrong_tokens(fresh, self.weights.shape.vocabulary)
        if not message:
            return True
        del ids[first:]  # they may be those of a trajectory
        self._done.append(Response(row.request.key, finish=Finish.REFUSED, message=message))
        return False

    def poll(self, wait: bool = True) -> list[Response]:
        while not self._done and (self._queue or self._rows):
            self._step()
            if not wait:
                break
        done, self._done = self._done, []
        return done

    def start(self) -> None:
        """Launch a step with the prompts that are here, while the host prepares others. Waits for nothing. Whether there is a step is
        decided by counts, not by the clock, so that the same requests give the same steps."""
        if self.early and not self._faulted and len(self._flights) < EARLY_FLIGHTS and self._worth_a_start(len(self._flights)):
            step = self._schedule(decode=False)
            if step.rows:
                self._run(step)

    def _worth_a_start(self, flights: int) -> bool:
        """Whether enough is waiting. If so many steps are under way, the next one can be larger, up to a full one."""
        ready = min(len(self._queue), len(self._free_slots))
        if ready >= (1 + flights) * EARLY_ROWS:
            return True
        wanted = self.prefill_tokens if flights else min(EARLY_TOKENS, self.prefill_tokens // 2)
        return sum(row.unchecked for row in islice(self._queue, ready)) >= wanted

    def release(self, sequence: int) -> None:
        self._keep(sequence)
        self._chains.release(sequence)
        for row in (*self._rows, *self._queue):
            if row.request.sequence == sequence:
                row.keeps = False

    def publish(self, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        self.forget()  # what is on its way was drawn with the old weights
        if weights is not None:
            load_weights(self.model, weights)
        self._runner.update()
        self.version = version

    def refresh(self) -> None:
        """Nothing computed with the old weights is used again. Rows in the middle of a response continue with the new ones."""
        self.forget()
        self._runner.update()

    def forget(self) -> None:
        """As if this engine were new: a prefix from the cache differs in its last digits from one that is computed here."""
        self._reset()
        self._since_prefill = 0

    def sleep(self) -> None:
        """Give the cache's memory back, for an update of the weights. The next poll takes it again and recomputes what it needs."""
        self._reset()
        self._runner.sleep()

    def close(self) -> None:
        self._reset()
        self._runner.sleep()
        self._queue.clear()
        self._done.clear()
        self._closed = True

    # One step: schedule, run, postprocess.

    def _step(self) -> None:
        if self._faulted:
            self._reset()
            self._runner.clean()
            self._faulted = False
        answered = len(self._done)
        self._keep_all()
        step = self._schedule()
        if step.rows:
            if not self._run(step):
                return
        elif not self._flights and len(self._done) == answered:  # a prompt that was refused just now is progress
            self._make_room()
        while len(self._flights) > (self._runner.ahead if step.rows else 0):
            self._postprocess(*self._flights.popleft())

    def _run(self, step: Step) -> bool:
        """Launch a step; False if there was no memory for it."""
        try:
            self._launch(step)
        except torch.OutOfMemoryError as error:
            self._recover(step, error)
            return False
        except BaseException:
            self._reset(postprocess=False)  # pages were promised contents that they did not get
            raise
        return True

    def _launch(self, step: Step) -> None:
        sampling = [step.rows[i] for i in step.drawing]
        result = self._runner.run(step)
        for row, count in zip(step.rows, step.counts, strict=True):
            row.computed += count
        for row in sampling:
            row.flying += 1
        self._flights.append((sampling, result))
        self._garbage.clear()
        self._keep_all()
        self._pages.drop([source for source, _, _ in step.copies])  # held until now, so that nothing else was written there

    def _postprocess(self, rows: list[RunningRequest], result: StepResult) -> None:
        """Read the tokens that a step sampled, and hand out the rows that end with them."""
        for index, (row, token, logprob) in enumerate(zip(rows, *result.wait(), strict=True)):
            row.flying -= 1
            if row.finished:
                continue
            if not math.isfinite(logprob):
                message = f"the model's logits after {len(row.ids)} tokens are not numbers: have its weights diverged?"
                self._leave(row, row.response(Finish.FAULT, message))
                self._faulted = True
                continue
            if not row.logprobs:
                row.version = self.version
            row.ids.append(token)
            row.logprobs.append(logprob)
            if result.noted is not None:
                result.noted.into(row.reports, index, row.request.sampling.report)
            if token in self.stop_token_ids or (row.stop is not None and row.stop.push(token)):
                self._leave(row, row.response(Finish.STOP))
            elif len(row.ids) >= row.end:
                self._leave(row, row.response(Finish.LENGTH))
            elif row.rule is not None and row.rule(token, row.newest()):
                self._leave(row, row.response(Finish.RULE))
        if len(self._leaving) < 2 * self.early:  # of many that end at once, most can wait until a GPU works
            self._keep_all()

    def _leave(self, row: RunningRequest, response: Response) -> None:
        """The row is finished: its slot is free, and its pages are kept for the trajectory's next turn."""
        row.finished = True
        self._done.append(response)
        self._rows.remove(row)
        self._free_slots.append(row.slot)
        self._keep(row.request.sequence)  # another request of its trajectory
        self._leaving[row.request.sequence] = row, response.finish is not Finish.FAULT
        if not self.early:
            self._keep_all()

    def _keep(self, sequence: int) -> None:
        """Keep what a finished row of this trajectory computed, if that is not done yet."""
        if (leaving := self._leaving.pop(sequence, None)) is not None:
            self._chains.leave(*leaving)

    def _keep_all(self) -> None:
        for row, good in self._leaving.values():
            self._chains.leave(row, good)
        self._leaving.clear()

    # Which rows go into the next step.

    def _schedule(self, decode: bool = True) -> Step:
        """The next step, perhaps without rows. Without `decode`, one with prompts or none."""
        self._pages.step()
        step = Step()
        todo = [(row, row.todo) for row in self._rows]
        if self._runner.mixed or self._prompts_first(any(count > 1 for _, count in todo)):
            for row, count in todo:
                if count > 1 or self._runner.mixed:
                    self._add_tokens(row, count, step)
            self._admit(step)
            todo += [(row, row.todo) for row in self._rows[len(todo) :]]
            self._since_prefill = 0
        if not step.rows and decode:
            self._since_prefill += 1
            size = self._pages.size
            for row, count in todo:
                if count == 1 and (row.computed < len(row.chain.pages) * size or self._chains.grow(row.chain, row.computed + 1)):
                    step.add(row, 1, draws=True)
        if step.rows:
            step.copies, self._chains.copies = self._chains.copies, []
            step.admitted, self._admitted = self._admitted, []
        return step

    def _prompts_first(self, begun: bool) -> bool:
        """If prompts have a separate forward: whether it is time for one. A small one costs as much as a step of all rows, so a few
        waiting rows wait for more, but not for long. `begun`: a prompt has been read in part."""
        if begun:
            return True
        ready = min(len(self._queue), len(self._free_slots))
        return bool(ready) and (ready * 4 >= len(self._rows) or self._since_prefill >= 8)

    def _add_tokens(self, row: RunningRequest, todo: int, step: Step) -> None:
        """Give a row as many of its tokens in this step as budget and memory allow."""
        count = min(todo, self.prefill_tokens - step.tokens) if todo > 1 else todo
        if count < 1 or not self._chains.grow(row.chain, row.computed + count):
            return
        step.add(row, count, draws=count == todo)
        if count > 1:  # the tokens of a prompt are known: others may use them from now on
            row.chain.written = row.computed + count
            row.chain.ids = row.ids
            self._pages.index(row.chain)

    def _admit(self, step: Step) -> None:
        """Take rows out of the queue, in order of arrival; those whose prefix is just being computed by another one come a step later."""
        waiting: list[RunningRequest] = []
        while self._queue and self._free_slots and step.tokens < self.prefill_tokens and len(waiting) < self.max_batch:
            row = self._queue.popleft()
            if row.unchecked and not self._check(row):
                continue
            ready = self._chains.find_prefix(row)
            if ready is None:
                waiting.append(row)
                continue
            spare = len(self._rows) // 4 if self._pages.count > len(self._rows) else 0
            if not ready or not self._chains.fits(row, spare):
                self._chains.give_up(row)
                waiting.append(row)
                break
            row.slot = self._free_slots.pop()
            self._rows.append(row)
            self._admitted.append(row)
            if row.todo > 1 or self._runner.mixed:
                self._add_tokens(row, row.todo, step)
        self._queue.extendleft(reversed(waiting))

    # Lack of memory, failures, and new weights.

    def _make_room(self) -> None:
        """No row could continue: the youngest one goes back to the queue."""
        if not self._rows:
            raise TurnwiseError(f"engine: {len(self._queue)} requests wait and none can start; this is a fault of the engine")
        row = self._rows[-1]
        self._rows.remove(row)
        self._free_slots.append(row.slot)
        if row in self._admitted:
            self._admitted.remove(row)
        self._chains.give_up(row)
        self._queue.appendleft(row)

    def _reset(self, postprocess: bool = True) -> None:
        """Forget all that was computed; every row starts over from the tokens it has."""
        while self._flights:
            rows, result = self._flights.popleft()
            if postprocess:
                self._postprocess(rows, result)
        self._leaving.clear()
        for row in reversed(self._rows):
            row.chain, row.computed, row.flying = Chain(), 0, 0
            self._queue.appendleft(row)
        self._rows.clear()
        self._admitted.clear()
        self._free_slots = list(range(self.max_batch))
        self._garbage = self._chains.clear()

    def _recover(self, step: Step, error: Exception) -> None:
        """Out of memory: try again with fewer prompt tokens at a time; a step that is small already is a fault of its rows."""
        largest = max(step.counts)
        self._reset()
        torch.cuda.empty_cache()
        if largest > 1 and self.prefill_tokens > FEWEST_PREFILL_TOKENS:
            self.prefill_tokens = max(FEWEST_PREFILL_TOKENS, min(self.prefill_tokens, step.tokens) // 2)
            return
        for row in step.rows:
            if row in self._queue:
                self._queue.remove(row)
                self._done.append(row.response(Finish.FAULT, f"the model's forward found no memory: {error}"))
