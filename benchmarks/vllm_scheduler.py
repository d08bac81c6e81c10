"""Our vLLM engine on the real scheduler, engine core and output processor of vLLM, without a GPU: the workers compute nothing.

    python benchmarks/vllm_scheduler.py --out benchmarks/vllm_scheduler.json       with an installed vLLM
    PYTHONPATH=vllm-0.32.0:. python benchmarks/vllm_scheduler.py                   with its unpacked source archive, which needs no compiler

The workers "draw" a token from a request's seed and the token's position, and give it a log-prob that says how often weights were replaced
before. Requests, steps and updates come in random order. Every response must have the tokens, the end and, token by token, the version that
follow from this; anything else ends the program with an error. What is printed says how much was tried.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results import publish

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

WAYS = {"keep": ("keep", False), "keep_cache": ("keep", True), "abort": ("abort", False)}
WORDS, STOP, LONGEST = 300, 77, 128
loaded = SimpleNamespace(count=0)  # how often weights were replaced


def drawn(seed: int, position: int) -> int:
    return (seed * 7919 + position * 104729) % (WORDS - 10) + 5


def prepare() -> None:
    """A platform that asks for no device, and an executor whose workers are this object."""
    import numpy as np
    import torch
    import vllm.config.vllm
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    class Nowhere(CpuPlatform):  # type: ignore[misc]
        @classmethod
        def check_and_update_config(cls, config: Any) -> None:
            config.cache_config.block_size = config.cache_config.block_size or 16
            config.parallel_config.worker_cls = "none"

    class Workers(Executor):  # type: ignore[misc]
        """Knows the tokens of every request, and draws the next one whenever all of them were computed."""

        def _init_executor(self) -> None:
            self.known: dict[str, Any] = {}
            self.output: Any = None

        def collective_rpc(self, method: str, timeout: Any = None, args: Any = (), kwargs: Any = None, **more: Any) -> list[Any]:
            loaded.count += method == "finish_weight_update"
            spec = {"layer": FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)}
            answers = {"get_kv_cache_spec": spec, "get_supported_kv_cache_layouts": ["NHD"], "determine_available_memory": 1 << 24}
            return [answers.get(method)]

        def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
            for name in scheduled.finished_req_ids:
                self.known.pop(name, None)
            for new in scheduled.scheduled_new_reqs:
                ids = list(getattr(new, "prefill_token_ids", None) or new.prompt_token_ids)
                self.known[new.req_id] = SimpleNamespace(ids=ids, computed=new.num_computed_tokens, seed=new.sampling_params.seed)
            old = scheduled.scheduled_cached_reqs
            for name, computed in zip(old.req_ids, old.num_computed_tokens, strict=True):
                self.known[name].computed = computed
            names = list(scheduled.num_scheduled_tokens)
            tokens = [self._next(name, count) for name, count in scheduled.num_scheduled_tokens.items()]
            pairs = [pair for pair in tokens if pair]
            flat = LogprobsLists(
                np.array([[token] for token, _ in pairs]).reshape(-1, 1),
                np.array([[logprob] for _, logprob in pairs], dtype=np.float64).reshape(-1, 1),
                np.zeros(len(pairs), int),
                np.cumsum([0, *(pair is not None for pair in tokens)]).tolist(),
            )
            places = {name: place for place, name in enumerate(names)}
            sampled = [[pair[0]] if pair else [] for pair in tokens]
            self.output = ModelRunnerOutput(
                req_ids=names, req_id_to_index=places, sampled_token_ids=sampled, logprobs=flat if pairs else None
            )
            return self._later(self.output if not names else None, non_block)

        def _next(self, name: str, count: int) -> tuple[int, float] | None:
            one = self.known[name]
            assert one.computed + count <= len(one.ids), "more is scheduled than there is"
            if one.computed + count < len(one.ids):
                return None
            position = len(one.ids)
            one.ids.append(drawn(one.seed, position))
            return one.ids[-1], -(loaded.count + position / 1000)

        def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
            return self._later(self.output, non_block)

        def _later(self, value: Any, later: bool) -> Any:
            done: Future[Any] = Future()
            done.set_result(value)
            return done if later else value

        supported_tasks = ("generate",)
        supports_async_scheduling = classmethod(lambda cls: True)
        initialize_from_config = compile_or_warm_up_model = check_health = shutdown = lambda self, *given: None

    vllm.platforms._current_platform = Nowhere()
    vllm.config.vllm.HAS_TRITON = True
    vllm.config.vllm.VllmConfig._get_v2_model_runner_unsupported_features = lambda self: []
    Executor.get_class = staticmethod(lambda config: Workers)


def play(model: Any, update: str, keep_cache: bool, seed: int, ahead: bool) -> dict[str, int]:
    """One engine's life, and a comparison of all its responses with what they must be."""
    from turnwise.engines.base import Request, Sampling
    from turnwise.engines.vllm import VllmEngine

    chance, loaded.count = random.Random(seed), 0
    engine = VllmEngine(
        model, None, 8, LONGEST, update=update, keep_cache=keep_cache, self_check=False, eager=True, prefill_tokens=32,
        stop_token_ids=(STOP,), arguments={"async_scheduling": ahead},
    )  # fmt: skip
    versions, requests, found = {loaded.count: 0}, list[Request](), list[Any]()
    counts = {"updates": 0, "updates_with_a_step_in_flight": 0, "responses": 0, "responses_of_several_versions": 0}
    for _ in range(120):
        what = chance.random()
        if what < 0.3 and len(requests) < 24:
            prompt = [chance.randrange(WORDS) for _ in range(chance.randrange(1, 60))]
            requests.append(Request(len(requests), prompt, Sampling(max_tokens=chance.randrange(1, 40)), seed=len(requests) + 1))
            engine.submit(requests[-1:])
        elif what < 0.42:
            counts["updates"] += 1
            counts["updates_with_a_step_in_flight"] += bool(engine._core._in_flight)
            engine.publish(engine.version + 1)
            versions[loaded.count] = engine.version
        elif what < 0.45:
            engine.forget()
        else:
            found += engine.poll(wait=False)
    while engine.pending:
        found += engine.poll()
    assert sorted(response.key for response in found) == list(range(len(requests))), "every request is answered once"
    for response in found:
        compare(requests[response.key], response, versions)
        counts["responses"] += 1
        counts["responses_of_several_versions"] += len(response.spans) > 1
    engine.close()
    return counts


def compare(request: Any, response: Any, versions: dict[int, int]) -> None:
    """Tokens, end, and the version of every token."""
    start, wanted = len(request.prompt_ids), list[int]()
    while len(wanted) < min(request.sampling.max_tokens, LONGEST - start) and STOP not in wanted:
        wanted.append(drawn(request.seed, start + len(wanted)))
    assert list(response.token_ids) == wanted and response.finish == ("stop" if STOP in wanted else "length")
    drew = [versions[round(-logprob - (start + place) / 1000)] for place, logprob in enumerate(response.logprobs)]
    assert drew == [version for version, count in response.spans for _ in range(count)] and response.version == drew[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=8, help="engines per way")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import vllm

    prepare()
    from native_models import make

    from turnwise.engines.vllm import compat

    compat.gpus = lambda: 1
    model = make("qwen2", vocab_size=WORDS)
    result: dict[str, Any] = {"vllm": vllm.__version__, "ways": {}}
    for ahead in (True, False):
        for name, way in WAYS.items():
            lives = [play(model, *way, seed, ahead) for seed in range(options.lives)]
            total = {key: sum(life[key] for life in lives) for key in lives[0]}
            result["ways"][f"{name}, {'asynchronous' if ahead else 'synchronous'} scheduling"] = total
    publish(result, options.out)


if __name__ == "__main__":
    main()
