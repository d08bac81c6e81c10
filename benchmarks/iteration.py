"""One whole GiGPO iteration of the paper's shape on one GPU: rollout, credit, log-probs, update; seconds of each, and share of the floor.

    python benchmarks/iteration.py window --write
    python benchmarks/iteration.py full --write
    python benchmarks/iteration.py full --size tiny                              seconds, on a CPU
    python benchmarks/iteration.py window --only-rollout --write rollout-window  the rollout alone
    python benchmarks/iteration.py window --only-rollout --vllm                  and then the same with vLLM, if that is installed

16 groups × 8 trajectories × 50 turns, none ends early, 100 sampled tokens per turn. `window`: every turn has a prompt of 700 tokens, of
which the first 150 are the group's. `full`: the dialogue begins with 500 tokens (150 the group's) and grows by 60 per turn and the
response, to 8,440. Everything is the real path: collector, pool, policy and native engine with the learner's own weights, GiGPO's credit,
the learner with KL reference, old log-probs and 256 turns per step. Only the environment is scripted: it answers at once, and its
observations are random tokens. Weights are random (the 1.5B shape, bfloat16).

`--only-rollout` builds no learner. With `--vllm` the same collector then plays the same script with the vLLM engine, on a copy of the same
weights and with the same number of rows. The floor of a phase is what matrix products and memory allow at the rates measured in the same
run.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch
import transformers
from bench import SHAPES, WORDS, Part, ceilings, main, need_gpu, random_model

from turnwise import credit
from turnwise.agent.base import Parsed, Prompt
from turnwise.collect.collector import Collector
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.source import summarise
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task, TaskSet
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Pool
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.methods.planning import TaskSlots
from turnwise.objectives import Loss
from turnwise.util.prefix import Prefix
from turnwise.util.seeds import derive

VOCABULARY = {"tiny": 1000}  # others: WORDS


@dataclass(frozen=True)
class Shape:
    """The iteration that is measured."""

    context: str = "window"
    size: str = "1.5b"
    groups: int = 16
    members: int = 8
    turns: int = 50
    shared: int = 150
    prompt: int = 700
    opening: int = 500
    observation: int = 60
    response: int = 100
    turns_a_step: int = 256

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its response."""
        if self.context == "window":
            return self.prompt + self.response
        return self.opening + (self.turns - 1) * self.observation + self.turns * self.response

    @property
    def model(self) -> dict[str, int]:
        return SHAPES[self.size] | {"vocab_size": VOCABULARY.get(self.size, WORDS)}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Hidden, MLP, layers, heads, key heads, words."""
        return tuple(self.model.values())


TINY = Shape(size="tiny", groups=2, members=4, turns=4, shared=8, prompt=40, opening=30, observation=6, response=5, turns_a_step=8)


ATTEMPTS = count()  # every attempt has its own random numbers
NOISE = 2**20


class Script:
    """An environment that answers at once, never ends, and gives random rewards. Every third state is shared with others of the group."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.place, self.chance = 0, random.Random(next(ATTEMPTS))
        return Observation("start", anchor="start")

    def step(self, action: str) -> Transition:
        self.place += 1
        anchor = self.place if self.place % 3 == 0 else self.chance.getrandbits(40)
        return Transition(Observation("on", anchor=anchor), reward=float(self.chance.random() < 0.05))


@lru_cache(maxsize=1)
def noise(words: int) -> list[int]:
    """Random tokens, made once: what prompts are cut from."""
    found: list[int] = np.random.default_rng(0).integers(0, words, NOISE).tolist()
    return found


class Dialogue:
    """A context whose prompts have exact lengths: random tokens instead of text. They are made before anything is measured, and a piece of
    them costs next to nothing, as observations do that a real agent has tokenised before. No two turns have the same piece."""

    def __init__(self, shape: Shape, numbers: Callable[[], int]):
        self.shape, self.number, self.noise = shape, numbers(), noise(shape.model["vocab_size"])

    def start(self, task: Task, observation: Observation) -> None:
        self.turn, self.common = 0, self._tokens(derive(0, task.id), self.shape.shared)
        self.ids = self.common + self._own(self.shape.opening - self.shape.shared)

    def prompt(self) -> Prompt:
        if self.shape.context == "full":
            return Prompt(Prefix(self.ids))
        return Prompt(self.common + self._own(self.shape.prompt - self.shape.shared))

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.turn += 1
        if self.shape.context == "full":
            self.ids += response_ids
            self.ids += self._own(self.shape.observation)

    def _own(self, number: int) -> list[int]:
        return self._tokens((self.number * 1000 + self.turn) * 577, number)

    def _tokens(self, place: int, number: int) -> list[int]:
        start = place % (NOISE - 1000)
        return self.noise[start : start + number]


class Bench:
    """The parts of a run, and the clock."""

    def __init__(self, shape: Shape, old: Any = None, only_rollout: bool = False):
        """`old`: whose log-probs are the old ones; None: the learner's default. `only_rollout`: there is no learner."""
        self.shape = shape
        self.device = "cuda" if shape.size != "tiny" else "cpu"
        self.rates = ceilings() if self.device == "cuda" else {"matmul_flop_per_s": 5e10, "copy_bytes_per_s": 1e10}
        settings = LearnerSettings(
            loss=Loss(kl_coef=0.01),
            dtype="bfloat16" if self.device == "cuda" else "float32",
            minibatch_size=shape.turns_a_step,
            minibatch_unit="turn",
            old_logprobs=old,
            optimiser=OptimiserSettings(lr=1e-6),
        )
        self.model = random_model(shape.size, self.device, half=False, vocabulary=shape.model["vocab_size"])
        self.learner: Any = None
        if only_rollout:
            self.model = self.model.to(getattr(torch, settings.dtype)).eval()
        else:
            self.learner = Learner(self.model, settings)
            self.model = self.learner.model
        release()
        rows = shape.groups * shape.members
        self.sampling = Sampling(temperature=1.0, max_tokens=shape.response)
        self.dialogues = 0
        self.engine: Any = NativeEngine(self.model, max_batch=rows, max_length=shape.longest + 1, cache_memory=self._cache(rows))
        self.pool = Pool(Script, rows)

    def _cache(self, rows: int) -> float:
        """Bytes for the keys and values of all trajectories, and a little more."""
        sizes = self.shape.model
        width = sizes["hidden_size"] // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
        token = 4 * sizes["num_hidden_layers"] * width * (1 if self.device == "cuda" else 2)
        return 1.15 * rows * (self.shape.longest + 64) * token

    def collect(self, turns: int, groups: int, place: int) -> list[Trajectory]:
        policy = ModelPolicy(self.engine, self._context, lambda ids, observation: ("", Parsed("go")), self.sampling)
        collector = Collector(self.pool, policy, turns)
        return collector.run(TaskSlots(self.tasks, 0, self.shape.members, shuffle=False).starts(place, groups))

    @cached_property
    def tasks(self) -> TaskSet:
        return TaskSet([Task(str(n), "train") for n in range(2 * self.shape.groups)])

    def _context(self) -> Dialogue:
        return Dialogue(self.shape, self._next)

    def _next(self) -> int:
        self.dialogues += 1
        return self.dialogues

    def warm_up(self) -> None:
        """Compile kernels and record steps: two turns, an update on a few of them, and one on sequences of full length."""
        found = self.collect(2, self.shape.groups, 0)[: 2 * self.shape.members]
        for some in (found, [self._longest(one) for one in found[: self.shape.members]]):
            batch = Batch.of(some)
            self.learner.update(batch.with_columns({"turn.advantage": np.random.default_rng(0).normal(size=len(batch))}))
        self.engine.refresh()

    def _longest(self, trajectory: Trajectory) -> Trajectory:
        """Its first turn, after a prompt that is as long as the last one of an iteration."""
        turn, more = trajectory.turns[0], self.shape.longest - self.shape.response - len(trajectory.turns[0].prompt_ids)
        return replace(trajectory, turns=[replace(turn, prompt_ids=[*turn.prompt_ids, *[0] * max(more, 0)])])

    def iteration(self) -> dict[str, Any]:
        """The iteration, phase by phase, as the training loop goes through them."""
        seconds: dict[str, float] = {}
        with Phase(seconds, "rollout", self.device):
            found = self.collect(self.shape.turns, self.shape.groups, self.shape.groups)
        with Phase(seconds, "credit", self.device):
            batch = Batch.of(found)
            values = credit.compute("gigpo", batch.rollouts, gamma=0.95, omega=1.0, norm="std")
            batch = batch.with_columns({"turn.advantage": values})
            credit.diagnose(batch.rollouts)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with Phase(seconds, "learner", self.device):
            metrics = self.learner.update(batch, seed=1)
            self.engine.refresh()
        whole = seconds.pop("learner")
        parts = {name: metrics.get(f"seconds_{name}", 0.0) for name in ("pack", "old_logprobs", "reference")}
        seconds |= parts | {"update": whole - sum(parts.values())}
        return {"seconds": seconds, "metrics": metrics, "summary": summarise(found), "found": found}

    @cached_property
    def floors(self) -> dict[str, float]:
        """Seconds that the phases take at least: operations at the rate of matrix products, or bytes at the rate of copies."""
        shape, rates = self.shape, self.rates
        hidden, middle, layers, heads, kv_heads, words = shape.sizes
        matrices = layers * (2 * hidden**2 + 2 * hidden**2 * kv_heads // heads + 3 * hidden * middle)
        rows, sampled = shape.groups * shape.members, shape.groups * shape.members * shape.turns * shape.response
        lengths = [shape.longest] * rows if shape.context == "full" else [shape.longest] * rows * shape.turns
        attention = 2.0 * layers * hidden * sum(length**2 for length in lengths)
        forward = (2.0 * matrices * sum(lengths) + 2.0 * hidden * words * sampled + attention) / rates["matmul_flop_per_s"]
        return {"rollout": self._rollout_floor(matrices, rows), "old_logprobs": forward, "reference": forward, "update": 3 * forward}

    def _rollout_floor(self, matrices: int, rows: int) -> float:
        shape, (hidden, _, layers, heads, kv_heads, words) = self.shape, self.shape.sizes
        key_bytes = 4 * layers * hidden // heads * kv_heads
        bytes_read = operations = 0.0
        for turn in range(shape.turns):
            past = shape.opening + turn * (shape.observation + shape.response) if shape.context == "full" else shape.prompt
            new = past if turn == 0 else shape.observation
            if shape.context == "window":
                new = shape.prompt - shape.shared * (shape.members - 1) // shape.members
            operations += rows * new * (2.0 * matrices + 4.0 * layers * hidden * (past - new / 2))
            steps = shape.response - 1
            bytes_read += steps * (2.0 * (matrices + hidden * words) + rows * key_bytes * (past + shape.response / 2))
        return operations / self.rates["matmul_flop_per_s"] + bytes_read / self.rates["copy_bytes_per_s"]


class Phase:
    """Adds the seconds of what happens inside, with all that it started on the GPU."""

    def __init__(self, seconds: dict[str, float], name: str, device: str):
        self.seconds, self.name, self.device = seconds, name, device

    def __enter__(self) -> None:
        self.start = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = self._now() - self.start

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def about(bench: Bench, seconds: dict[str, float], from_engine: bool = False) -> dict[str, Any]:
    """The machine, and the floors compared with what was measured. `from_engine`: old log-probs needed no pass."""
    floors = {name: bench.floors[name] for name in bench.floors if name in seconds} | ({"old_logprobs": 0.0} if from_engine else {})
    total, least = sum(seconds.values()), sum(floors.values())
    return {
        "shape": bench.shape.__dict__,
        "machine": torch.cuda.get_device_name() if bench.device == "cuda" else "CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rates": {name: round(rate / 1e12, 3) for name, rate in bench.rates.items()},
        "seconds": {name: round(value, 2) for name, value in seconds.items()} | {"total": round(total, 2)},
        "floor_seconds": {name: round(value, 2) for name, value in floors.items()} | {"total": round(least, 2)},
        "share_of_floor": {name: round(floors[name] / max(seconds[name], 1e-9), 3) for name in floors} | {"total": round(least / total, 3)},
    }


def measure_iteration(bench: Bench) -> dict[str, Any]:
    """All that is reported of one iteration."""
    bench.warm_up()
    result = bench.iteration()
    metrics, summary, from_engine = result["metrics"], result["summary"], bool(result["metrics"].get("old_from_engine"))
    on_gpu = bench.device == "cuda"
    return about(bench, result["seconds"], from_engine) | {
        **{name: summary[name] for name in ("turns", "length", "success", "prompt_tokens", "response_tokens")},
        "tokens_forward": metrics["tokens_forward"],
        "steps": metrics["steps"],
        "tokens_per_batch": bench.learner.budget.tokens,
        "old_from_engine": from_engine,
        "engine_gap": {"mean": metrics["engine_gap"], "max": metrics["engine_gap_max"]},
        "peak_gb": round(max(metrics["memory_peak_gib"] * 2**30, torch.cuda.max_memory_allocated()) / 1e9, 1) if on_gpu else None,
        "between_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if on_gpu else None,  # the learner counts anew after an update
    }


def measure_rollout(bench: Bench) -> dict[str, Any]:
    """The rollout alone, after one of a few turns."""
    bench.collect(3, bench.shape.groups, 0)
    bench.engine.refresh()
    seconds = dict[str, float]()
    with Phase(seconds, "rollout", bench.device):
        trajectories = bench.collect(bench.shape.turns, bench.shape.groups, bench.shape.groups)
    summary = summarise(trajectories)
    return about(bench, seconds) | {name: summary[name] for name in ("turns", "prompt_tokens", "response_tokens")}


def measure_vllm(bench: Bench) -> dict[str, Any]:
    """The rollout with vLLM in the same process, after one of a few turns."""
    import vllm

    from turnwise.engines.vllm import VllmEngine

    bench.engine.close()
    release()
    shape = bench.shape
    rows = shape.groups * shape.members
    bench.engine = VllmEngine(bench.model, max_batch=rows, max_length=shape.longest + 1, memory=0.6, stop_token_ids=())
    bench.collect(3, shape.groups, 0)
    bench.engine.forget()
    seconds = dict[str, float]()
    with Phase(seconds, "rollout", bench.device):
        summary = summarise(bench.collect(shape.turns, shape.groups, shape.groups))
    bench.engine.close()
    counts = {name: summary[name] for name in ("turns", "response_tokens")}
    return {"version": vllm.__version__, "seconds": round(seconds["rollout"], 2), **counts}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=("tiny", "0.5b", "1.5b"), default="1.5b")
    parser.add_argument("--turns", type=int, help="fewer turns, for a trial")
    parser.add_argument(
        "--old", choices=("learner", "engine", "auto"), help="whose log-probs are the old ones; default: the learner's default"
    )
    parser.add_argument("--only-rollout", action="store_true")
    parser.add_argument("--vllm", action="store_true", help="with --only-rollout: then measure it with vLLM, in the same process")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One iteration in this context, or its rollout alone."""
    if options.vllm and not options.only_rollout:
        raise SystemExit("--vllm is for --only-rollout: a learner leaves vLLM no memory")
    if options.size != "tiny":
        need_gpu("--size tiny")
    shape = replace(TINY if options.size == "tiny" else Shape(size=options.size), context=options.part)
    shape = replace(shape, turns=options.turns or shape.turns)
    if not options.only_rollout:
        return measure_iteration(Bench(shape, options.old))
    bench = Bench(shape, only_rollout=True)
    result = measure_rollout(bench)
    return result | ({"vllm": measure_vllm(bench)} if options.vllm else {})


PARTS = {"window": Part(measure, options_of), "full": Part(measure, options_of)}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
