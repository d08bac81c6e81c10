"""What the engine calls of vLLM 0.26. No other file imports vLLM.

A round of weights is start, update (any number of times), finish. `LLMEngine` runs in the caller's process: token ids with a cache salt
in, token ids with flat log-probs out. `LLMEngine.sleep(level=0, mode="keep")` is there what `AsyncLLM.pause_generation(mode="keep",
clear_cache=False)` is in a server.

A step is launched before the output of the one before is read (asynchronous scheduling, vLLM's default). Between two steps one is in
flight. A pause does not wait for it in the caller's process: `step` reads it while nothing new is scheduled.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from turnwise.util.errors import MissingExtra, TurnwiseError, install_command

RELEASE = "0.26"
LOCAL = "turnwise"  # the name under which our own transfer is registered
QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}  # unless the user says otherwise

WORKERS = 1800.0  # seconds for workers to answer: some calls read the weights of a large model from disk
IN_FLIGHT = 64  # steps after which nothing may be in flight any more: there are two at most, one more per stage of a pipeline

CHATTY = ("vllm.model_executor.model_loader.reload.layerwise", "vllm.utils.jit_monitor")  # once per round, about what is fine


def installed() -> str:
    """The version of vLLM, without importing it; an error if there is none."""
    try:
        return str(getattr(sys.modules.get("vllm"), "__version__", "") or metadata.version("vllm"))
    except metadata.PackageNotFoundError:
        raise MissingExtra("engine.name=vllm", "vllm") from None


def gpus() -> int:
    """The number of GPUs that this process sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check(tensor_parallel: int = 1) -> None:
    """Everything that can be checked before a model is loaded: the package, its version, the GPUs, what the transfer needs."""
    version, seen = installed(), gpus()
    if version.split(".")[:2] != RELEASE.split("."):
        raise TurnwiseError(f"engine.name=vllm: vLLM {version} is installed, and {RELEASE} is needed: {install_command('vllm')}")
    if seen == 0:
        raise TurnwiseError("engine.name=vllm needs a GPU, and this process sees none: use engine.name=native or transformers on a CPU")
    if tensor_parallel > seen:
        raise TurnwiseError(f"engine.options.tensor_parallel={tensor_parallel}: this process sees {seen} GPU{'s' * (seen > 1)}")
    if tensor_parallel > 1 and importlib.util.find_spec("ray") is None:
        raise MissingExtra("engine.name=vllm: vLLM's ipc transfer imports ray and", "cluster")


def load(name: str, *attributes: str) -> tuple[Any, ...]:
    """Objects of vLLM by name. A missing one is an error that names the release."""
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        module = importlib.import_module(name)
        return tuple(getattr(module, attribute) for attribute in attributes)
    except (ImportError, OSError, AttributeError) as error:
        raise TurnwiseError(
            f"engine.name=vllm: {name} cannot be used: {error}. vLLM {RELEASE} needs one exact version of torch, so install them together: "
            f"{install_command('vllm')}"
        ) from error


def engine_arguments(folder: str, dtype: str, max_batch: int, max_length: int, backend: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM's engine. Weights come later, so it starts with random ones; no tokenizer is loaded, and the model's
    sampling defaults are not used."""
    (config,) = load("vllm.config", "WeightTransferConfig")
    arguments: dict[str, Any] = {
        "model": folder,
        "load_format": "dummy",
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_num_seqs": max_batch,
        "max_model_len": max_length,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 100,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "seed": 0,
        "weight_transfer_config": config(backend=backend),
    }
    if not more.get("enforce_eager"):
        arguments["compilation_config"] = {"cudagraph_capture_sizes": graph_sizes(max_batch)}
    return arguments | dict(more)


@contextmanager
def global_chance() -> Iterator[None]:
    """vLLM seeds the global random generators of this process. Afterwards they have their previous state again."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)


def graph_sizes(max_batch: int) -> list[int]:
    """The numbers of tokens for which a step is captured. A step of an agent's rows is mostly a mixture of rows that draw and of short
    new parts of prompts, so there are sizes beyond the number of rows; a step of more tokens is launched kernel by kernel."""
    rows = {1, 2, 4, *range(8, max_batch, 8), max_batch}
    return sorted(rows | {size for size in (*range(256, 1024, 64), *range(1024, 2049, 256)) if size > max_batch})


class Core:
    """The part of vLLM's engine in this process that our engine uses."""

    def __init__(self, arguments: Mapping[str, Any]):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its scheduler runs in this process, and only when we step
        args, engine, self._params = load("vllm", "EngineArgs", "LLMEngine", "SamplingParams")
        (self._kinds,) = load("vllm.sampling_params", "RequestOutputKind")
        (self._tokens,) = load("vllm.inputs", "tokens_input")
        if arguments["weight_transfer_config"].backend == LOCAL:
            (factory,) = load("vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory")
            if LOCAL not in factory._registry:
                factory.register_engine(LOCAL, local_transfer())
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with global_chance():
                self._engine: Any = engine.from_engine_args(args(**arguments), enable_multiprocessing=False)
        except Exception as error:
            raise TurnwiseError(f"engine.name=vllm: vLLM could not start: {type(error).__name__}: {error}") from error

    # Requests.

    def parameters(self, *, stream: bool, **settings: Any) -> Any:
        """How one request is sampled; `stream` returns its tokens after each step and not only all of them at the end."""
        kind = self._kinds.DELTA if stream else self._kinds.FINAL_ONLY
        return self._params(**settings, output_kind=kind, detokenize=False, flat_logprobs=True, ignore_eos=True)

    def add(self, name: str, prompt: Sequence[int], salt: str, parameters: Any) -> str:
        """Add a request. Returns its name for `abort` and `drawn`."""
        return str(self._engine.add_request(name, self._tokens(list(prompt), cache_salt=salt), parameters))

    def step(self) -> list[Any]:
        return list(self._engine.step())

    def abort(self, names: Sequence[str]) -> None:
        if names:
            self._engine.abort_request(list(names), internal=True)

    def drawn(self, name: str) -> int:
        """How many tokens of a request were drawn and read."""
        state = self._engine.output_processor.request_states.get(name)
        return 0 if state is None else int(state.detokenizer.num_output_tokens())

    # A pause that keeps requests.

    def pause(self) -> None:
        """Schedule nothing more; requests stay. What is in flight is not waited for: `drain`."""
        self._engine.sleep(level=0, mode="keep")

    def resume(self) -> None:
        self._engine.wake_up(tags=["scheduling"])

    def drain(self) -> Iterator[Any]:
        """The outputs of the steps that are in flight. Nothing new is launched if vLLM is paused, or has no requests."""
        for _ in range(IN_FLIGHT):
            if not getattr(getattr(self._engine.engine_core, "engine_core", None), "batch_queue", None):
                return
            yield from self.step()
        raise TurnwiseError(f"vLLM still has a step in flight after {IN_FLIGHT} more, although it is paused")

    def forget(self) -> None:
        """Drop all keys and values; running requests compute theirs again."""
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise TurnwiseError("vLLM could not reset its prefix cache")

    def rpc(self, method: str, **arguments: Any) -> None:
        """Call all workers. Those in other processes answer in time, or there is an error."""
        self._engine.collective_rpc(method, timeout=WORKERS, kwargs=arguments)

    def close(self) -> None:
        """End vLLM's workers and free its memory."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()


def local_transfer() -> type:
    """A transfer inside one process: vLLM's life cycle of a round, and tensors that are handed over as they are. Its own ipc transfer
    cannot do that: a process cannot open CUDA handles that it made itself."""
    (base,) = load("vllm.distributed.weight_transfer.base", "WeightTransferEngine")
    start, finish = load("vllm.model_executor.model_loader.reload", "initialize_layerwise_reload", "finalize_layerwise_reload")

    class LocalTransfer(base):  # type: ignore[misc,valid-type]
        """Weights of this process, by name."""

        init_info_cls = update_info_cls = dict

        def init_transfer_engine(self, init_info: Any) -> None:
            """Nothing to set up."""

        def start_weight_update(self) -> None:
            self._missing = {name for name, _ in self.model.named_parameters()}
            start(self.model)

        def receive_weights(self, update_info: Any) -> None:
            loaded = self.model.load_weights(update_info["weights"])
            self._missing -= set(loaded) if loaded is not None else self._missing

        def finish_weight_update(self) -> None:
            finish(self.model, self.model_config)
            if self._missing:  # vLLM itself only warns, and keeps the old ones
                raise ValueError(f"{len(self._missing)} weights of vLLM's model were not given, among them {min(self._missing)!r}")

        def shutdown(self) -> None:
            """Nothing to end."""

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            """Part of the interface; the weights are handed over by `update_weights`."""
            raise NotImplementedError

    return LocalTransfer
