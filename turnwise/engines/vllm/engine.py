"""The vLLM engine: our engine protocol on top of vLLM's engine.

vLLM's scheduler runs in this process and only when it is stepped. Its model is a second copy of the learner's, and starts with the
learner's weights. Every later version is one update: pause, one round of vLLM's weight transfer (start, update, finish), drop all keys
and values, resume. New requests carry the version in the salt of their prefix cache.

Responses that are under way during an update stay in vLLM, and nothing more is scheduled. A step is still in flight then; its tokens were
drawn by the old weights, and are read before anything is replaced. Every token's log-prob is the one that it was sampled with, and
`Response.spans` says which version drew it.

A round that fails leaves a model with some new and some old weights, and vLLM cannot undo it: the engine is then dead, reports that, and
must be made again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.module import evaluating, inner_model, longest
from turnwise.engines.registry import Vllm, register
from turnwise.engines.reports import read_report, refuse
from turnwise.engines.stopping import Running, need_tokenizer, stop_tokens, wrong_length, wrong_tokens
from turnwise.engines.vllm.compat import Core, check, engine_arguments
from turnwise.engines.vllm.weights import Ipc, Local, Pairs, Route, checked, config_folder, named_weights, shapes_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

SEEDS = (1 << 63) - 1
STALLS = 300.0  # seconds without a token after which vLLM makes no progress
REPORTS = ("top_logprobs", "top_tokens")
CHECKED_TOKENS = 16  # that are compared at the start
LARGEST_GAP = 1.0  # nats per token, on average: bfloat16 gives a few hundredths, wrong weights several


@dataclass(slots=True, eq=False)
class Row(Running):
    """`name` is vLLM's for this request. `marks` says after how many tokens weights were replaced, and the version of those that had drawn
    them."""

    name: str = ""
    marks: list[tuple[int, int]] = field(default_factory=list)

    def take(self, token: int, logprob: float, flat: Any, start: int) -> None:
        """One drawn token, and what is reported about it: of `flat`, the drawn token first, then the most likely ones, in order."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        for name in self.request.sampling.report:
            report = read_report(name)
            source = flat.logprobs if report.kind == "top_logprobs" else flat.token_ids
            for place, column in enumerate(report.columns):
                self.reports.setdefault(column, []).append(float(source[start + 1 + place]))

    def mark(self, drawn: int, version: int) -> None:
        """Weights are replaced now: the first `drawn` tokens were drawn before, the latest of them with this version."""
        if drawn > (self.marks[-1][0] if self.marks else 0):
            self.marks.append((drawn, version))

    def spans(self, version: int) -> tuple[tuple[int, int], ...]:
        """Versions in order, each with the number of tokens that it drew; those since the last mark were drawn with `version`."""
        spans: list[tuple[int, int]] = []
        before = 0
        sampled = len(self.logprobs)
        for end, drew in [*self.marks, (sampled, version)]:
            count, before = min(end, sampled) - before, max(before, min(end, sampled))
            if count > 0 and spans and spans[-1][0] == drew:
                spans[-1] = drew, spans[-1][1] + count
            elif count > 0:
                spans.append((drew, count))
        return tuple(spans)


@register("vllm")
class VllmEngine(Vllm):
    """Generation by vLLM 0.26, in this process, on a copy of the learner's weights; on NVIDIA GPUs.

    `model` is the learner's module (or another with its config): the weights are taken from it at the start, by `refresh`, and by
    `publish` without weights. `memory` is the share of the GPU's memory that vLLM takes in all, its copy of the weights included.
    `tensor_parallel` splits the model over that many GPUs.
    `eager` runs without compilation and CUDA graphs. `self_check` transfers the same weights twice at the start and compares.
    `arguments` are further arguments of vLLM's EngineArgs. The tokenizer is needed for stop strings. Not thread-safe."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_batch: int = 64,
        max_length: int | None = None,
        *,
        memory: float = 0.4,
        tensor_parallel: int = 1,
        prefill_tokens: int = 16384,
        dtype: torch.dtype | None = None,
        eager: bool = False,
        self_check: bool = True,
        arguments: dict[str, Any] | None = None,
        stop_token_ids: Sequence[int] | None = None,
    ):
        check(tensor_parallel)
        if not 0 < memory <= 1 or max_batch < 1 or prefill_tokens < 1:
            raise TurnwiseError(f"engine: memory is a share up to 1, max_batch and prefill_tokens are positive: {memory=}, {max_batch=}")
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise TurnwiseError("engine.name=vllm runs in a process of its own if the learner has several ranks: use [cluster]")
        self.model, self.tokenizer, self.max_batch = model, tokenizer, max_batch
        self.max_length = min(longest(inner_model(model), max_length), longest(inner_model(model), None))
        inner = inner_model(model)
        named = stop_tokens(tokenizer, getattr(inner, "generation_config", None), inner.config)
        self.stop_token_ids = named if stop_token_ids is None else frozenset(stop_token_ids)
        self.version, self.reports = 0, REPORTS
        self.transfer_seconds: list[float] = []
        self.dead = ""
        self._shapes = shapes_of(model)
        self._tied = bool(getattr(inner.config.get_text_config(), "tie_word_embeddings", False))
        self._words = int(inner.get_input_embeddings().weight.shape[0])
        self._route: Route = Local() if tensor_parallel == 1 else Ipc(tensor_parallel)
        self._rows: dict[str, Row] = {}
        self._done: list[Response] = []
        self._count, self._epoch, self._closed = 0, 0, False
        self._follows = True  # the weights are those of `model`
        more: dict[str, Any] = {
            "gpu_memory_utilization": memory, "tensor_parallel_size": tensor_parallel, "enforce_eager": eager,
            "max_num_batched_tokens": max(prefill_tokens, max_batch),
        }  # fmt: skip
        name = str(dtype or next(inner.parameters()).dtype).removeprefix("torch.")
        with config_folder(model) as folder:
            core_arguments = engine_arguments(folder, name, max_batch, self.max_length, self._route.backend, more | (arguments or {}))
            self._core = Core(core_arguments)
        self._start(self_check)

    @staticmethod
    def check_options(sampling: Sampling, options: Mapping[str, Any]) -> None:
        """An error for what cannot work, before a model is loaded."""
        check_sampling(sampling)
        check(int(options.get("tensor_parallel", 1)))

    def _start(self, compare: bool) -> None:
        try:
            self._route.begin(self._core)
            self.refresh()  # from here on, its weights are the model's
            if compare:
                compare_transfers(self)
        except BaseException:
            self.close()
            raise

    @property
    def pending(self) -> int:
        return len(self._rows) + len(self._done)

    # Requests.

    def submit(self, requests: Sequence[Request]) -> None:
        self._alive()
        for request in requests:
            check_sampling(request.sampling)
            need_tokenizer(request, self.tokenizer, "VllmEngine")
            if request.images:
                raise TurnwiseError("engine.name=vllm takes no images: use engine.name=transformers")
            prompt = [int(token) for token in request.prompt_ids]
            if problem := wrong_length(prompt, self.max_length) or wrong_tokens(prompt, self._words):
                self._done.append(Response(request.key, finish=Finish.REFUSED, message=problem))
            else:
                self._enter(Row.of(request, prompt, self.max_length, self.tokenizer))

    def _enter(self, row: Row) -> None:
        """Give vLLM a row."""
        sampling, self._count = row.request.sampling, self._count + 1
        parameters = self._core.parameters(
            stream=row.stop is not None or row.rule is not None,
            temperature=sampling.temperature,
            max_tokens=row.end - len(row.ids),
            seed=row.request.seed & SEEDS,
            logprobs=max((read_report(name).count for name in sampling.report), default=0),
            stop_token_ids=sorted(self.stop_token_ids),
        )
        key, salt = f"{self._count}", f"turnwise-{self.version}-{self._epoch}"  # prefixes of one salt are shared
        try:
            row.name = self._core.add(key, row.ids, salt, parameters)
        except ValueError as error:  # vLLM takes everything that we let through, as far as we know
            self._done.append(row.response(Finish.REFUSED, f"vLLM: {error}"))
            return
        self._rows[key] = row

    def poll(self, wait: bool = True) -> list[Response]:
        self._alive()
        looked, drawn = time.monotonic(), -1
        while not self._done and self._rows:
            try:
                outputs = self._core.step()
            except BaseException as error:
                raise self._die("a step of vLLM failed", error) from error
            for output in outputs:
                self._read(output)
            if not wait:
                break
            if time.monotonic() - looked > STALLS:
                looked, drawn = time.monotonic(), self._progress(drawn)
        done, self._done = self._done, []
        return done

    def _progress(self, before: int) -> int:
        """How many tokens the rows have; an error if that is what they had before."""
        drawn = sum(self._core.drawn(row.name) for row in self._rows.values())
        if drawn == before and self._rows and not self._done:
            error = TimeoutError(f"no token for {len(self._rows)} requests within {STALLS:g} seconds")
            raise self._die("vLLM makes no progress", error)
        return drawn

    def _read(self, output: Any) -> None:
        """Take what a step returned for one request: all of its tokens, or those of this step."""
        row = self._rows.get(output.request_id)
        if row is None:
            return None  # aborted, and answered already
        completion = output.outputs[0]
        flat = completion.logprobs
        for place, token in enumerate(completion.token_ids):
            start = flat.start_indices[place] if flat is not None else 0
            logprob = flat.logprobs[start] if flat is not None and len(flat.logprobs) > start else math.nan
            if logprob is None or not math.isfinite(logprob):
                message = f"the model's logits after {len(row.ids)} tokens are not numbers: has it diverged?"
                return self._leave(row, output, Finish.FAULT, message)
            row.take(int(token), float(logprob), flat, start)
            if ended := row.ended(int(token), self.stop_token_ids):
                return self._leave(row, output, ended)
        if output.finished:
            self._leave(row, output, Finish.FAULT, f"vLLM ended it: {completion.finish_reason}")
        return None

    def _leave(self, row: Row, output: Any, finish: Finish, message: str = "") -> None:
        del self._rows[output.request_id]
        if not output.finished:
            self._core.abort([row.name])
        spans = row.spans(self.version)
        version = spans[0][0] if spans else self.version  # that of the weights which drew its latest tokens
        self._done.append(replace(row.response(finish, message), version=version, spans=spans))

    # Weights.

    def publish(self, version: int, weights: Mapping[str, Tensor] | Pairs | None = None) -> None:
        """The weights have this version now. Without `weights` they are those of the learner's module. A wrong name or shape is found
        before the round starts, and changes nothing."""
        self._alive()
        if weights is None:
            self._replace(named_weights(self.model), version)
        else:
            self._replace(checked(weights, self._shapes, self._tied), version)
        self._follows = weights is None

    def refresh(self) -> None:
        """The learner's module has other weights: they are transferred, under the same version. An engine that gets its weights from
        elsewhere keeps those, and forgets what it computed."""
        if self._follows:
            self._alive()
            self._replace(named_weights(self.model))
        else:
            self.forget()

    def forget(self) -> None:
        """Forget everything that was computed, as if this engine were new."""
        self._alive()
        self._pause()
        self._resume(self.version)

    def _replace(self, pairs: Pairs, version: int | None = None) -> None:
        """One update."""
        number, start = self.version if version is None else version, time.perf_counter()
        self._pause()
        try:
            self._route.send(self._core, pairs)
        except BaseException as error:
            raise self._die(f"the transfer of version {number} failed", error) from error
        self._resume(number)
        self.transfer_seconds.append(time.perf_counter() - start)

    def _pause(self) -> None:
        """From here on nothing is drawn, and what was drawn is marked with the version that drew it."""
        try:
            self._core.pause()
            for output in self._core.drain():
                self._read(output)
            for row in self._rows.values():
                row.mark(self._core.drawn(row.name), self.version)
        except BaseException as error:
            raise self._die("vLLM could not be paused", error) from error

    def _resume(self, version: int) -> None:
        """Continue with this version. Cached keys and values are dropped."""
        try:
            self._core.forget()
            self._core.resume()
        except BaseException as error:
            raise self._die("vLLM's cache could not be reset", error) from error
        self.version, self._epoch = version, self._epoch + 1

    # Its end.

    def _die(self, what: str, error: BaseException) -> BaseException:
        """From now on this engine only reports that it is dead. Returns the error to raise."""
        self.dead = f"{what}: {type(error).__name__}: {error}"
        return self._is_dead() if isinstance(error, Exception) else error

    def _is_dead(self) -> TurnwiseError:
        return TurnwiseError(f"the vLLM engine is dead and has to be made again: {self.dead}")

    def _alive(self) -> None:
        if self.dead:
            raise self._is_dead()
        if self._closed:
            raise TurnwiseError("this engine is closed")

    def close(self) -> None:
        self._closed = True
        self._rows.clear()
        self._done.clear()
        if (core := self.__dict__.pop("_core", None)) is not None:
            core.close()


def check_sampling(sampling: Sampling) -> None:
    """vLLM's log-probs are those after top-k, top-p and min-p, and a learner needs those before."""
    if sampling.temperature > 0 and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
        raise TurnwiseError(
            "engine.name=vllm gives log-probs after top-k, top-p and min-p, and learning needs those before: leave them at their defaults "
            f"(engine.top_p={sampling.top_p:g}, engine.top_k={sampling.top_k}, engine.min_p={sampling.min_p:g}), or use engine.name=native"
        )
    refuse(sampling.report, REPORTS, "the vLLM engine")


def compare_transfers(engine: VllmEngine) -> None:
    """Greedy tokens must stay the same if the same weights are transferred again, and their log-probs must be the module's."""
    before = _greedy(engine)
    engine.refresh()
    after = _greedy(engine)
    model = type(inner_model(engine.model)).__name__
    if before.token_ids != after.token_ids:
        raise TurnwiseError(
            f"engine.name=vllm: transferring its own weights changed the greedy tokens of {model}: {before.token_ids} before, "
            f"{after.token_ids} after. vLLM cannot replace the weights of this model in place: use engine.name=native or transformers"
        )
    gap = gap_to_module(engine, after)
    if not gap < LARGEST_GAP:
        raise TurnwiseError(
            f"engine.name=vllm: with the same weights, its log-probs differ by {gap:.2f} nats per token from those of {model}: vLLM has "
            "not loaded this model's weights as they are meant"
        )


def _greedy(engine: VllmEngine) -> Response:
    request = Request(0, _prompt(engine), Sampling(temperature=0.0, max_tokens=min(CHECKED_TOKENS, engine.max_length - 8)))
    engine.submit([request])
    (response,) = engine.poll()
    return response


def _prompt(engine: VllmEngine) -> list[int]:
    words = int(inner_model(engine.model).get_input_embeddings().weight.shape[0])
    return [derive(0, "vllm", place) % words for place in range(min(8, engine.max_length // 2))]


def gap_to_module(engine: VllmEngine, response: Response) -> float:
    """The mean distance between a greedy response's log-probs and those of the learner's module, for the check's own prompt."""
    parameter = next(inner_model(engine.model).parameters())
    if parameter.is_meta or not response.token_ids:
        return 0.0
    prompt = _prompt(engine)
    ids = torch.tensor([prompt + list(response.token_ids)], device=parameter.device)
    with evaluating(engine.model), torch.no_grad():
        logits = engine.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
    return float((logprobs - torch.tensor(response.logprobs)).abs().mean())
