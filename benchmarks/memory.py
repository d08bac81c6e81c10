"""Training inside a small card: a process that may take only so much memory runs iterations of a real recipe, beside what was predicted.

    python benchmarks/memory.py --out memory.json                  all cases, one process each, on a GPU
    python benchmarks/memory.py --case 1.5b --iterations 10        one of them
    python benchmarks/memory.py --case 1.5b --tiny                 seconds, on a CPU: a tiny shape, and no limit

    0.5b          all weights in 12 GB          7b-lora       adapters in 40 GB
    1.5b          all weights in 24 GB          7b-lora-4bit  adapters on weights of 4 bits in 24 GB

The recipes are recipes/alfworld*.toml on generated households, with random weights of the real shape. What it answers is noise, so every
attempt lasts to the turn limit. Groups, turns and responses are fewer and shorter than in the recipe (--groups, --turns, --response), so
that all cases take some six minutes; what decides about memory is not: the rows and the cache of the engine, the longest sequence, the
tokens at once, the optimiser. Settings are chosen as `turnwise train` chooses them on such a card. The limit is set before anything is
allocated. It holds for what torch allocates, so the CUDA context is subtracted from it first. `predicted_in_use_gb` is to be compared with
`measured_peak_gb`, and `predicted_peak_gb` with the limit. --seconds ends a case early; the result says how many iterations were made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from results import publish
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.config.schema import Config
from turnwise.config.writing import to_toml
from turnwise.learn.footprint import CONTEXT, in_use, terms
from turnwise.learn.shapes import SHAPES, ModelShape
from turnwise.learn.tiny import build_tiny_for
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.fit import GB, Found, find, with_settings
from turnwise.setup.small_gpu import keep_choice
from turnwise.setup.state import restore
from turnwise.setup.system import System
from turnwise.train import run_iterations
from turnwise.util.files import write_text_atomically

RECIPES = Path(__file__).parent.parent / "recipes"
TINY = ModelShape("tiny", 64, 128, 2, 4, 2, 4000, 16, tied=True)


@dataclass(frozen=True)
class Case:
    """A recipe, a model's shape, the gigabytes of the card, and how many groups of 8 attempts an iteration has."""

    recipe: str
    shape: ModelShape
    limit: float
    groups: int
    settings: tuple[str, ...] = ()


CASES = {
    "0.5b": Case("alfworld.toml", SHAPES["0.5b"], 12, 16),
    "1.5b": Case("alfworld.toml", SHAPES["1.5b"], 24, 8),
    "7b-lora": Case("alfworld-7b-lora.toml", SHAPES["7b"], 40, 3),
    "7b-lora-4bit": Case("alfworld-7b-lora.toml", SHAPES["7b"], 24, 3, ("model.lora.base=4bit",)),  # needs bitsandbytes
}


def random_model(shape: ModelShape, dtype: torch.dtype = torch.float32) -> Any:
    """A model of this shape on the CPU in a second: all layers begin with the same numbers, in the same memory, and get their own when they
    move to the GPU. Trained weights are float32, as a folder is loaded; frozen ones are made in the dtype that they will have."""
    config = Qwen2Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.words,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)  # its buffers are computed
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    for name, parameter in list(model.named_parameters()):
        key = tuple(parameter.shape), name.endswith("bias")
        if key not in made or shape is TINY:  # on a CPU nothing moves
            made[key] = numbers(*key, dtype)
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, nn.Parameter(made[key]))
    model.tie_weights()
    return model.eval()


def numbers(size: tuple[int, ...], bias: bool, dtype: torch.dtype) -> torch.Tensor:
    """A matrix of random numbers (a block of them, again and again), the ones of a norm or the zeros of a bias."""
    if len(size) == 1:
        return torch.full(size, 0.0 if bias else 1.0, dtype=dtype)
    block = (0.02 * torch.randn(2**20, generator=torch.Generator().manual_seed(0))).to(dtype)
    count = size[0] * size[1]
    return block.repeat(-(-count // len(block)))[:count].view(size)


class RandomSystem(System):
    """The parts of a run with random weights of a shape, and a tokenizer of the environment's words."""

    shape: ModelShape = TINY

    def _load(self) -> tuple[Any, Any]:
        own, sample = self.config.env, 4 if self.shape is TINY else 40
        _, tokenizer = build_tiny_for(own.name, options=dict(own.options), sample=sample, layers=1, hidden=16, heads=1, limits=self.limits)
        return random_model(self.shape, torch.float32 if self.config.model.lora is None else self.dtype), tokenizer

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.config.model.dtype)


def limit_memory(gigabytes: float) -> None:
    """Torch may allocate no more than this card would leave it."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((gigabytes * GB - CONTEXT) / total)


def recipe(case: Case, options: argparse.Namespace) -> Config:
    """The recipe of a case, shortened."""
    changes: dict[str, Any] = {
        "env.name": "household",
        "env.tasks": 64,
        "env.max_turns": options.turns,
        "collect.groups": options.groups or case.groups,
        "iterations": options.iterations,
        "model.path": None,  # the weights are made here
        "model.tiny.max_length": 32768,
        "engine.max_tokens": options.response,
        "learner.tokens_per_batch": 0,
        "eval.n": 2,
        "eval.every": 0,
        "eval.split": "valid",
        "run.checkpoint_every": 0,
        "device": "cpu" if options.tiny else "cuda",
    }
    if options.tiny:
        changes |= {"model.dtype": "float32", "collect.groups": 1, "collect.group_size": 2, "engine.max_batch": 4}
        changes |= {"agent.max_prompt_tokens": 512, "env.tasks": 4, "env.options.size": "tiny", "agent.history": 1, "eval.n": 1}
    values = dict(pair.split("=", 1) for pair in case.settings)
    return Config.load(RECIPES / case.recipe, changes | values)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Choose settings, train, and compare."""
    case = CASES[name]
    if not options.tiny:
        limit_memory(case.limit)
    RandomSystem.shape = shape = TINY if options.tiny else case.shape
    config = recipe(case, options)
    found = find(config, int(case.limit * GB), shape)
    config = with_settings(config, found.settings)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(folder, name, to_toml(config))
        keep_choice(run, found)
        late = until(options.seconds)
        system = RandomSystem(config, say=lambda text: print(text, file=sys.stderr), cancelled=late)
        try:
            system.check()
            run_iterations(run, system, restore(run, system, system.say), Reporter())
            tokens = system.learner.settings.tokens_per_batch
        finally:
            system.close()
        rows = [row for row in run.metrics() if row["iteration"] > 0]
    sizes = {"attempts": config.collect.groups * config.collect.group_size, "turns": options.turns, "response": options.response}
    return {"case": name, "recipe": case.recipe, "limit_gb": case.limit, **sizes} | predicted(found) | measured(rows, tokens)


def until(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds are over; never if 0."""
    start = time.monotonic()
    return lambda: 0 < seconds < time.monotonic() - start


def predicted(found: Found) -> dict[str, Any]:
    return {
        "chosen": found.settings,
        "as_it_is_gb": round(found.plain.peak / GB, 2),
        "predicted_peak_gb": round(found.fit.peak / GB, 2),
        "predicted_in_use_gb": round(in_use(terms(found.fit.demand)) / GB, 2),
        "predicted_terms_gb": {term.name: round(term.most / GB, 2) for term in found.fit.terms},
    }


def measured(rows: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """What the iterations took. On a CPU memory is not measured."""
    last = rows[1:] or rows  # the first compiles kernels

    def rate(what: str, seconds: str) -> float:
        return round(sum(row[what] for row in last) / sum(row[seconds] for row in last), 1)

    result: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "iterations": len(rows),
        "tokens_at_once": tokens,
        "seconds_per_iteration": round(sum(row["time/iteration"] for row in last) / len(last), 2),
        "sampled_tokens_per_s": rate("collect/response_tokens", "time/collect"),
        "learned_tokens_per_s": rate("learner/tokens_forward", "time/update"),
        "measured_peak_gb": None,
    }
    if any("learner/memory_peak_gib" in row for row in rows):
        free, total = torch.cuda.mem_get_info()
        most = max(row["learner/memory_peak_gib"] for row in rows) * 2**30
        held = max(row["learner/memory_held_gib"] for row in rows) * 2**30
        result |= {"measured_peak_gb": round(max(most, torch.cuda.max_memory_allocated()) / GB, 2), "measured_held_gb": round(held / GB, 2)}
        result |= {"outside_torch_gb": round((total - free - torch.cuda.memory_reserved()) / GB, 2)}
    return result


def every_case(options: argparse.Namespace, words: list[str]) -> list[dict[str, Any]]:
    """Each case in a process of its own, because a limit holds for a process. What is known is written after each of them."""
    found = []
    for name in CASES:
        start = time.monotonic()
        done = subprocess.run([sys.executable, __file__, "--case", name, *words], stdout=subprocess.PIPE, text=True, check=False)
        result = {"case": name, "limit_gb": CASES[name].limit, "failed": done.returncode} if done.returncode else json.loads(done.stdout)
        found.append(result | {"seconds_in_all": round(time.monotonic() - start, 1)})
        if options.out is not None:
            write_text_atomically(options.out, json.dumps(found, indent=1) + "\n")
        print(f"{name}: {found[-1]['seconds_in_all']} s", file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("all", *CASES), default="all")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--groups", type=int, default=0, help="groups of 8 attempts per iteration; 0: as the case has them")
    parser.add_argument("--turns", type=int, default=2, help="turn limit")
    parser.add_argument("--response", type=int, default=32, help="sampled tokens per turn")
    parser.add_argument("--seconds", type=float, default=0.0, help="end a case after so many seconds; 0: after all iterations")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.case != "all":
        publish(measure(options.case, options), options.out)
        return
    words = [f"--{name}={getattr(options, name)}" for name in ("iterations", "groups", "turns", "response", "seconds")]
    publish(every_case(options, [*words, *(["--tiny"] if options.tiny else [])]), options.out)


if __name__ == "__main__":
    main()
