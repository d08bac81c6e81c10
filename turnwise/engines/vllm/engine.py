"""The vLLM engine: our engine protocol on top of vLLM's engine.

vLLM's scheduler runs in this process and only when it is stepped, so nothing is drawn while weights are replaced. Its model is a second
copy of the learner's, and starts with the learner's weights. Every later version is one round of vLLM's weight transfer: start, update,
finish; then all keys and values are dropped, and new requests carry the version in the salt of their prefix cache. A round that fails
leaves a model with some new and some old weights, and vLLM cannot undo it: the engine is then dead, reports that, and must be made again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.module import evaluating, longest
from turnwise.engines.registry import register
from turnwise.engines.reports import read_report, refuse
from turnwise.engines.sampling import frozen
from turnwise.engines.stopping import StopStrings, newest, stop_tokens, watch
from turnwise.engines.vllm.compat import Core, check, engine_arguments
from turnwise.engines.vllm.transfer import choose
from turnwise.engines.vllm.weights import Pairs, checked, config_folder, inner_model, named_weights, shapes_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

REPORTS = ("top_logprobs", "top_tokens")
SEEDS = (1 << 63) - 1
CHECKED_TOKENS = 16
LARGEST_GAP = 1.0  # nats per token, on average: bfloat16 gives a few hundredths, wrong weights several


@dataclass(slots=True)
class Row:
    """A submitted request. `name` is vLLM's; `version` is that of the weights that drew its first token, None before."""

    request: Request
    name: str
    stop: StopStrings | None
    rule: Callable[[int, Mapping[str, float]], bool] | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reports: dict[str, list[float]] = field(default_factory=dict)
    version: int | None = None


@register("vllm")
class VllmEngine:
    """Generation by vLLM 0.26 or later, in this process, on a copy of the learner's weights; on NVIDIA GPUs.

    `model` is the learner's module (or another with its config): the weights are taken from it at the start, by `refresh`, and by
    `publish` without weights. `memory` is the share of the GPU's memory that vLLM takes in all, its copy of the weights included.
    `tensor_parallel` splits the model over that many GPUs. `transfer` is the route of the weights: local, ipc, reload, nccl, or auto.
    `eager` runs without compilation and CUDA graphs. `self_check` transfers the same weights twice at the start and compares.
    `arguments` are further arguments of vLLM's EngineArgs. The tokenizer is needed for stop strings. Not thread-safe."""

    cheap_rules = False  # every token would have to be handed over on its own

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_batch: int = 64,
        max_length: int | None = None,
        *,
        memory: float = 0.4,
        tensor_parallel: int = 1,
        transfer: str = "auto",
        prefill_tokens: int = 16384,
        dtype: torch.dtype | None = None,
        eager: bool = False,
        self_check: bool = True,
        arguments: dict[str, Any] | None = None,
        stop_token_ids: Sequence[int] | None = None,
    ):
        release = check(tensor_parallel, transfer)
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
        self._route = choose(transfer, tensor_parallel, model)
        self._rows: dict[str, Row] = {}
        self._done: list[Response] = []
        self._count, self._epoch, self._closed = 0, 0, False
        self._follows = self._route.backend != "nccl"  # the weights are those of `model`
        more: dict[str, Any] = {
            "gpu_memory_utilization": memory, "tensor_parallel_size": tensor_parallel, "enforce_eager": eager,
            "max_num_batched_tokens": max(prefill_tokens, max_batch),
        }  # fmt: skip
        name = str(dtype or next(inner.parameters()).dtype).removeprefix("torch.")
        with config_folder(model) as folder:
            made = engine_arguments(folder, name, max_batch, self.max_length, self._route.backend, more | (arguments or {}))
            self._core = Core(release, made)
        self._start(self_check and self._route.backend != "nccl")

    @staticmethod
    def ready(sampling: Sampling, options: Mapping[str, Any]) -> None:
        """An error for what cannot work, before a model is loaded."""
        _check_sampling(sampling)
        check(int(options.get("tensor_parallel", 1)), str(options.get("transfer", "auto")))

    def _start(self, compare: bool) -> None:
        try:
            self._route.begin(self._core)
            self.refresh()  # from here on, its weights are the model's
            if compare:
                self._compare()
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
            sampling = request.sampling
            _check_sampling(sampling)
            if sampling.stop and self.tokenizer is None:
                raise TurnwiseError("engine: stop strings need a tokenizer: give one to VllmEngine")
            if request.images:
                raise TurnwiseError("engine.name=vllm takes no images: use engine.name=transformers")
            prompt = [int(token) for token in request.prompt_ids]
            if problem := self._problem(prompt):
                self._done.append(Response(request.key, finish=Finish.REFUSED, message=problem))
                continue
            self._add(request, prompt)

    def _problem(self, prompt: list[int]) -> str:
        """Why a prompt is rejected; empty if it is not."""
        if not prompt:
            return "the prompt is empty: it needs at least one token"
        if len(prompt) >= self.max_length:
            return (
                f"the prompt has {len(prompt)} tokens, and prompt and response together may have {self.max_length}: "
                "give a shorter prompt or a larger max_length"
            )
        if min(prompt) < 0 or max(prompt) >= self._words:
            return (
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}, and the model knows 0 to {self._words - 1}: "
                "another tokenizer?"
            )
        return ""

    def _add(self, request: Request, prompt: list[int]) -> None:
        sampling, self._count = request.sampling, self._count + 1
        stop = StopStrings(self.tokenizer, sampling.stop) if sampling.stop else None
        rule = watch(sampling, self.tokenizer)
        parameters = self._core.parameters(
            stream=stop is not None or rule is not None,
            temperature=sampling.temperature,
            max_tokens=min(sampling.max_tokens, self.max_length - len(prompt)),
            seed=request.seed & SEEDS,
            logprobs=max((read_report(name).count for name in sampling.report), default=0),
            stop_token_ids=sorted(self.stop_token_ids),
        )
        key = f"{self._count}"
        try:
            name = self._core.add(key, prompt, self._salt, parameters)
        except ValueError as error:  # vLLM takes everything that we let through, as far as we know
            self._done.append(Response(request.key, finish=Finish.REFUSED, message=f"vLLM: {error}"))
            return
        self._rows[key] = Row(request, name, stop, rule)

    @property
    def _salt(self) -> str:
        """The salt of new requests' prefixes, which are shared for the same weights and since the last `forget`."""
        return f"turnwise-{self.version}-{self._epoch}"

    def poll(self, wait: bool = True) -> list[Response]:
        self._alive()
        while not self._done and self._rows:
            try:
                outputs = self._core.step()
            except BaseException as error:
                raise self._die("a step of vLLM failed", error) from error
            for output in outputs:
                self._read(output)
            if not wait:
                break
        done, self._done = self._done, []
        return done

    def _read(self, output: Any) -> None:
        """Take what a step returned for one request: all of its tokens, or those of this step."""
        row = self._rows.get(output.request_id)
        if row is None:
            return None  # aborted, and answered already
        found = output.outputs[0]
        row.version = self.version if row.version is None and found.token_ids else row.version
        flat = found.logprobs
        for place, token in enumerate(found.token_ids):
            start = flat.start_indices[place] if flat is not None else 0
            logprob = flat.logprobs[start] if flat is not None and len(flat.logprobs) > start else math.nan
            if logprob is None or not math.isfinite(logprob):
                message = f"the model's logits after {len(row.request.prompt_ids) + len(row.ids)} tokens are not numbers: has it diverged?"
                return self._leave(row, output, Finish.FAULT, message)
            row.ids.append(int(token))
            row.logprobs.append(float(logprob))
            _note(row, flat, start)
            if ended := self._ended(row, int(token)):
                return self._leave(row, output, ended)
        if output.finished:
            reason = found.finish_reason
            known = {"stop": Finish.STOP, "length": Finish.LENGTH}
            self._leave(row, output, known.get(reason, Finish.FAULT), "" if reason in known else f"vLLM ended it: {reason}")
        return None

    def _ended(self, row: Row, token: int) -> Finish | None:
        """Whether we end a response that vLLM would continue: at a stop string, or by the request's rule."""
        if token in self.stop_token_ids or (row.stop is not None and row.stop.push(token)):
            return Finish.STOP
        longest_ = len(row.ids) >= min(row.request.sampling.max_tokens, self.max_length - len(row.request.prompt_ids))
        if not longest_ and row.rule is not None and row.rule(token, newest(row.reports)):
            return Finish.RULE
        return None

    def _leave(self, row: Row, output: Any, finish: Finish, message: str = "") -> None:
        del self._rows[output.request_id]
        if not output.finished:
            self._core.abort([row.name])
        version = -1 if row.version is None else row.version
        made = Response(row.request.key, tuple(row.ids), tuple(row.logprobs), finish, message, None, frozen(row.reports), version)
        self._done.append(made)

    def release(self, sequence: int) -> None:
        """Prefixes are shared by their content, and dropped when the memory is needed."""

    # Weights.

    def publish(self, version: int, weights: Mapping[str, Tensor] | Pairs | None = None) -> None:
        """The weights have this version now. Without `weights` they are those of the learner's module; if the learner sends them itself
        (transfer nccl), they are there already. A wrong name or shape is found before the round starts, and changes nothing."""
        self._alive()
        if weights is None and self._route.backend == "nccl":
            self._forget_all(version)
            return
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
        self._forget_all(self.version)

    def _replace(self, pairs: Pairs, version: int | None = None) -> None:
        """One round of transfer."""
        number, start = self.version if version is None else version, time.perf_counter()
        try:
            self._route.send(self._core, pairs, str(number))
        except BaseException as error:
            raise self._die(f"the transfer of version {number} failed", error) from error
        self._forget_all(number)
        self.transfer_seconds.append(time.perf_counter() - start)

    def _forget_all(self, version: int) -> None:
        for row in self._rows.values():
            if row.version is None and self._core.begun(row.name):
                row.version = self.version
        try:
            self._core.forget()
        except BaseException as error:
            raise self._die("vLLM's cache could not be reset", error) from error
        self.version, self._epoch = version, self._epoch + 1

    # vLLM's names for the parts of a round, for a sender that is elsewhere. A failure is final here too.

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", weight_version)

    def _call(self, name: str, *values: Any) -> None:
        self._alive()
        try:
            getattr(self._core, name)(*values)
        except BaseException as error:
            raise self._die(f"{name} failed", error) from error

    # Its end, and its check.

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

    def _compare(self) -> None:
        """Greedy tokens must stay the same if the same weights are transferred again, and their log-probs must be the module's."""
        before = self._greedy()
        self._replace(named_weights(self.model))
        after = self._greedy()
        if before.token_ids != after.token_ids:
            raise TurnwiseError(
                f"engine.name=vllm: transferring its own weights changed the greedy tokens of {type(inner_model(self.model)).__name__}: "
                f"{before.token_ids} before, {after.token_ids} after. vLLM cannot replace the weights of this model in place: "
                "use engine.name=native or transformers"
            )
        gap = self.gap(after)
        if not gap < LARGEST_GAP:
            raise TurnwiseError(
                f"engine.name=vllm: with the same weights, its log-probs differ by {gap:.2f} nats per token from those of "
                f"{type(inner_model(self.model)).__name__}: vLLM has not loaded this model's weights as they are meant"
            )

    def _greedy(self) -> Response:
        request = Request(0, self._prompt(), Sampling(temperature=0.0, max_tokens=min(CHECKED_TOKENS, self.max_length - 8)))
        self.submit([request])
        (found,) = self.poll()
        return found

    def _prompt(self) -> list[int]:
        return [derive(0, "vllm", place) % self._words for place in range(min(8, self.max_length // 2))]

    def gap(self, found: Response) -> float:
        """The mean distance between a greedy response's log-probs and those of the learner's module, for the check's own prompt."""
        parameter = next(inner_model(self.model).parameters())
        if parameter.is_meta or not found.token_ids:
            return 0.0
        prompt = self._prompt()
        ids = torch.tensor([prompt + list(found.token_ids)], device=parameter.device)
        with evaluating(self.model), torch.no_grad():
            logits = self.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        own = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
        return float((own - torch.tensor(found.logprobs)).abs().mean())


def _check_sampling(sampling: Sampling) -> None:
    """vLLM's log-probs are those after top-k, top-p and min-p, and a learner needs those before."""
    if sampling.temperature > 0 and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
        raise TurnwiseError(
            "engine.name=vllm gives log-probs after top-k, top-p and min-p, and learning needs those before: leave them at their defaults "
            f"(engine.top_p={sampling.top_p:g}, engine.top_k={sampling.top_k}, engine.min_p={sampling.min_p:g}), or use engine.name=native"
        )
    refuse(sampling.report, REPORTS, "the vLLM engine")


def _note(row: Row, flat: Any, start: int) -> None:
    """What is reported about one token: the drawn token, then the most likely ones, in order."""
    for name in row.request.sampling.report:
        report = read_report(name)
        source = flat.logprobs if report.kind == "top_logprobs" else flat.token_ids
        for place, column in enumerate(report.columns):
            row.reports.setdefault(column, []).append(float(source[start + 1 + place]))
