"""A stand-in for the parts of vLLM that the engine uses, on a CPU: the signatures, the order of calls and the refusals of 0.26,
read from their sources. Its model is the real one of transformers; it samples by Gumbel noise from a request's seed and position, keeps a
prefix cache of blocks by salt and tokens, and remembers which weights each block was computed with. As in vLLM, a step is launched before
the output of the one before is read, so that one is in flight between two steps."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM

BLOCK = 4
ARGUMENTS = {
    "model", "load_format", "dtype", "skip_tokenizer_init", "generation_config", "max_num_seqs", "max_model_len", "logprobs_mode",
    "max_logprobs", "enable_prefix_caching", "disable_log_stats", "seed", "weight_transfer_config", "compilation_config",
    "gpu_memory_utilization", "tensor_parallel_size", "enforce_eager", "max_num_batched_tokens",
}  # fmt: skip


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class EngineArgs:
    def __init__(self, **given: Any):
        if unknown := set(given) - ARGUMENTS:
            raise TypeError(f"EngineArgs got an unexpected keyword argument {min(unknown)!r}")
        self.__dict__ |= given
        self.given = given


@dataclass
class SamplingParams:
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclass
class FlatLogprobs:
    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, tokens: list[int], logprobs: list[float]) -> None:
        self.start_indices.append(len(self.logprobs))
        self.token_ids += tokens
        self.logprobs += logprobs
        self.end_indices.append(len(self.logprobs))

    def last(self, count: int) -> FlatLogprobs:
        """As a slice of the real one: the indices start at 0 again."""
        made = FlatLogprobs()
        for place in range(len(self.start_indices) - count, len(self.start_indices)):
            part = slice(self.start_indices[place], self.end_indices[place])
            made.append(self.token_ids[part], self.logprobs[part])
        return made


@dataclass
class Frame:
    """A token of a request that was launched: its log-probs, and the weights that drew it."""

    token: int
    tokens: list[int]
    logprobs: list[float]
    epoch: int


@dataclass
class State:
    """A request: what the real output processor, scheduler and model runner know of it. `frames` are launched and not read, `stale` of the
    frames that come back belong to before a preemption, `computed` are the weights that its keys and values were computed with."""

    external: str
    prompt: list[int]
    salt: str
    params: SamplingParams
    drawn: list[int] = field(default_factory=list)
    flat: FlatLogprobs = field(default_factory=FlatLogprobs)
    frames: list[Frame] = field(default_factory=list)
    stale: int = 0
    computed: set[int] = field(default_factory=set)

    @property
    def detokenizer(self) -> Any:
        return SimpleNamespace(num_output_tokens=lambda: len(self.drawn))

    @property
    def ids(self) -> list[int]:
        """All tokens, those in flight included."""
        return self.prompt + self.drawn + [frame.token for frame in self.frames]


class WeightTransferEngine:
    """The base class of a worker's transfer."""

    init_info_cls: Any
    update_info_cls: Any

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any):
        self.config, self.device, self.model, self.model_config = config, device, model, vllm_config.model_config

    def parse_init_info(self, given: dict[str, Any]) -> Any:
        return self.init_info_cls(**given)

    def update_weights(self, given: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**given))

    def receive_weights(self, info: Any) -> None:
        raise NotImplementedError


def initialize_layerwise_reload(model: Any) -> None:
    model.half_loaded = True


def finalize_layerwise_reload(model: Any, config: Any) -> None:
    model.half_loaded = False


class IPCWeightTransferEngine(WeightTransferEngine):
    """The ipc transfer."""

    init_info_cls = make_dataclass("Init", [])
    update_info_cls = make_dataclass(
        "Update", [*((name, list) for name in ("names", "dtype_names", "shapes", "ipc_handles")), ("packed", bool, False)]
    )

    def init_transfer_engine(self, info: Any) -> None:
        self.info = info

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, info: Any) -> None:
        assert len(info.names) == len(info.dtype_names) == len(info.shapes) == len(info.ipc_handles)
        self.model.load_weights([(name, handle["gpu-0"][0]) for name, handle in zip(info.names, info.ipc_handles, strict=True)])


class Factory:
    """The registry of a worker's transfers."""

    _registry: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_engine(cls, name: str, made: type) -> None:
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = lambda: made


class Worker:
    """The one worker: its model, and the state of a round."""

    def __init__(self, args: EngineArgs, registry: dict[str, Any]):
        self.active = False
        torch.manual_seed(1234)
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model)).to(getattr(torch, args.dtype)).eval()
        self.model.half_loaded = False
        self.model.load_weights = self.load_weights
        config = args.weight_transfer_config
        self.epoch = 0  # how often weights were loaded
        if config.backend not in registry:
            raise ValueError(f"Invalid weight transfer backend: {config.backend}")
        made = SimpleNamespace(model_config="model config")
        self.transfer = registry[config.backend]()(config, made, torch.device("cpu"), self.model)

    def load_weights(self, pairs: Any) -> set[str]:
        own, loaded = dict(self.model.named_parameters()), set()
        for name, tensor in pairs:
            own[name].data.copy_(tensor)
            loaded.add(name)
        self.epoch += 1
        return loaded

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.transfer.init_transfer_engine(self.transfer.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.transfer.start_weight_update()
        self.active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if not self.active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        try:
            self.transfer.update_weights(update_info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self) -> None:
        if not self.active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self.transfer.finish_weight_update()
        self.active = False


class LLMEngine:
    """The engine in this process. `calls` is what was asked of it, in order; `stale` counts prefixes of other weights that were reused,
    `mixed` tokens that were drawn over keys and values of other weights. `read` says which weights drew the tokens that were handed out, by
    seed and position."""

    made: ClassVar[list[LLMEngine]] = []
    registry: ClassVar[dict[str, Any]] = {}
    ahead: ClassVar[int] = 2  # steps in the queue; 1: without asynchronous scheduling

    def __init__(self, args: EngineArgs):
        self.args, self.calls = args, []
        self.worker = Worker(args, self.registry)
        self.output_processor = SimpleNamespace(request_states={})
        self.queue: deque[list[tuple[str, Frame]]] | None = deque() if self.ahead > 1 else None
        core = SimpleNamespace(batch_queue=self.queue)
        self.engine_core = SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"), engine_core=core)
        self.cache: dict[tuple[str, tuple[int, ...]], int] = {}
        self.running: set[str] = set()
        self.gone = False  # a request has ended, and the workers do not know yet
        self.paused = False
        self.stale, self.hits, self.mixed = 0, 0, 0
        self.read: dict[tuple[int, int], int] = {}
        LLMEngine.made.append(self)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, enable_multiprocessing: bool = False) -> LLMEngine:
        assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0" and not enable_multiprocessing
        return cls(engine_args)

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> str:
        assert isinstance(request_id, str) and prompt["type"] == "token" and params.flat_logprobs and not params.detokenize
        assert isinstance(params.seed, int) and -(2**63) <= params.seed < 2**63
        if len(prompt["prompt_token_ids"]) >= self.args.max_model_len:
            raise ValueError("The decoder prompt is longer than the maximum model length")
        if params.logprobs is not None and params.logprobs > self.args.max_logprobs:
            raise ValueError("Requested sample logprobs is greater than max allowed")
        name = f"{request_id}-{len(self.calls):08x}"
        self.output_processor.request_states[name] = State(request_id, list(prompt["prompt_token_ids"]), prompt["cache_salt"], params)
        self.calls.append(("add", request_id, prompt["cache_salt"]))
        return name

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        for name in request_ids:
            assert internal and name in self.output_processor.request_states
            self._end(name)
        self.calls.append("abort")

    def _end(self, name: str) -> None:
        del self.output_processor.request_states[name]
        self.running.discard(name)
        self.gone = True

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        if mode not in ("abort", "keep"):
            raise ValueError("'wait' pause mode is not supported in inproc-engine mode")
        assert level == 0 and mode == "keep", "other levels free the memory of the weights; other modes lose requests without an output"
        self.calls.append("sleep")
        self.paused = True

    def wake_up(self, tags: list[str] | None = None) -> None:
        assert tags == ["scheduling"], "other tags are for memory that was freed"
        self.calls.append("wake_up")
        self.paused = False

    def step(self) -> list[Any]:
        """As the real core: launch a step if there is anything to do, and read the oldest one unless there is room for another."""
        if self.queue is None:
            return self._read(self._launch()) if self._busy else []
        if self._busy:
            frames = self._launch()
            self.queue.appendleft(frames)
            if len(self.queue) < self.ahead and (frames or self._busy):
                return []
        return self._read(self.queue.pop()) if self.queue else []

    @property
    def _busy(self) -> bool:
        return self.gone or (bool(self.output_processor.request_states) and not self.paused)

    def _launch(self) -> list[tuple[str, Frame]]:
        """Draw a token for every request that can have one more; the real one is only started here, and runs on the GPU."""
        self.gone, found = False, []
        for name, state in list(self.output_processor.request_states.items())[: 0 if self.paused else self.args.max_num_seqs]:
            if len(state.drawn) + len(state.frames) < (state.params.max_tokens or 0):
                if name not in self.running:
                    self.running.add(name)
                    state.computed = set()
                    self._reuse(state)
                state.frames.append(self._draw(state))
                found.append((name, state.frames[-1]))
        return found

    def _read(self, frames: list[tuple[str, Frame]]) -> list[Any]:
        found = []
        for name, frame in frames:
            state = self.output_processor.request_states.get(name)
            if state is None:
                continue  # ended or aborted while it was in flight
            if state.stale:
                state.stale -= 1
                continue
            assert state.frames.pop(0) is frame
            self.read[state.params.seed, len(state.prompt) + len(state.drawn)] = frame.epoch
            state.drawn.append(frame.token)
            state.flat.append(frame.tokens, frame.logprobs)
            stopped = frame.token in (state.params.stop_token_ids or ())
            reason = "stop" if stopped else "length" if len(state.drawn) >= (state.params.max_tokens or 0) else None
            if state.params.output_kind is RequestOutputKind.FINAL_ONLY and reason is None:
                continue
            delta = state.params.output_kind is RequestOutputKind.DELTA
            ids, flat = ([frame.token], state.flat.last(1)) if delta else (state.drawn, state.flat)
            out = SimpleNamespace(token_ids=ids, logprobs=flat, finish_reason=reason, stop_reason=None)
            found.append(SimpleNamespace(request_id=state.external, outputs=[out], finished=reason is not None))
            if reason is not None:
                self._end(name)
        return found

    def _reuse(self, state: State) -> None:
        """The prefix cache, as blocks of tokens under a salt, with the weights that they were computed with."""
        ids = state.ids
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            key = (state.salt, tuple(ids[:end]))
            if key in self.cache:
                self.hits += 1
                self.stale += self.cache[key] != self.worker.epoch
            self.cache.setdefault(key, self.worker.epoch)

    def _draw(self, state: State) -> Frame:
        if self.worker.model.half_loaded or self.worker.active:
            raise RuntimeError("a step in the middle of a weight update")
        assert self.args.logprobs_mode == "processed_logprobs"
        state.computed.add(self.worker.epoch)
        self.mixed += state.computed != {self.worker.epoch}
        with torch.no_grad():
            logits = self.worker.model(input_ids=torch.tensor([state.ids])).logits[0, -1].float()
        params = state.params
        greedy = params.temperature == 0
        logprobs = torch.log_softmax(logits / (1.0 if greedy else params.temperature), -1)
        noise = torch.zeros_like(logprobs)
        if not greedy:
            assert params.seed is not None
            generator = torch.Generator().manual_seed((params.seed * 1000003 + len(state.ids)) % 2**63)
            uniform = torch.rand(logprobs.shape, generator=generator).clamp(1e-20, 1 - 1e-7)
            noise = -torch.log(-torch.log(uniform))
        token = int((logprobs + noise).argmax())
        top = logprobs.topk(params.logprobs or 0)
        value = float(logprobs[token])
        values = [value if math.isfinite(value) else math.nan, *top.values.tolist()]
        return Frame(token, [token, *top.indices.tolist()], values, self.worker.epoch)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.calls.append("reset_prefix_cache")
        if self.running and not reset_running_requests:
            return False
        for name in self.running:  # preempted: what is in flight of them is discarded when it comes back
            state = self.output_processor.request_states[name]
            state.stale, state.frames = len(state.frames), []  # counted anew, as in 0.26: twice without a step between loses count
        self.running.clear()
        self.cache.clear()
        return True

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        self.calls.append(method)
        return [getattr(self.worker, method)(*args, **(kwargs or {}))]


def tokens_input(prompt_token_ids: list[int], *, prompt: str | None = None, cache_salt: str | None = None) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": prompt_token_ids} | ({"cache_salt": cache_salt} if cache_salt is not None else {})


def install(monkeypatch: Any, version: str = "0.26.0", gpus: int = 1) -> type[LLMEngine]:
    """Put vLLM's modules where Python finds them; returns the engine's class, whose `made` lists the engines."""
    factory = type("Factory", (Factory,), {"_registry": {"ipc": lambda: IPCWeightTransferEngine}})
    engine = type("LLMEngine", (LLMEngine,), {"registry": factory._registry})
    LLMEngine.made = []
    names = "vllm.distributed.weight_transfer"
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": version, "EngineArgs": EngineArgs, "LLMEngine": engine, "SamplingParams": SamplingParams},
        "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
        "vllm.inputs": {"tokens_input": tokens_input},
        "vllm.config": {"WeightTransferConfig": lambda backend: SimpleNamespace(backend=backend)},
        "vllm.distributed": {},
        names: {},
        f"{names}.base": {"WeightTransferEngine": WeightTransferEngine},
        f"{names}.factory": {"WeightTransferEngineFactory": factory},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": initialize_layerwise_reload, "finalize_layerwise_reload": finalize_layerwise_reload},
    }  # fmt: skip
    for name, members in modules.items():
        module = ModuleType(name)
        module.__path__ = []
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for variable in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS", "VLLM_USE_FLASHINFER_SAMPLER"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
        monkeypatch.delenv(variable)
    monkeypatch.setattr("turnwise.engines.vllm.compat.gpus", lambda: gpus)
    return engine
