"""Training inside a small card: a process that may take only so much memory runs iterations of a real recipe, beside what was predicted.

    python benchmarks/memory.py --out memory.json                  all cases, one process each, on a GPU
    python benchmarks/memory.py --case 1.5b --iterations 10        one of them
    python benchmarks/memory.py --case 1.5b --tiny                 seconds, on a CPU: a tiny shape, and no limit

    0.5b          all weights in 12 GB          7b-lora       adapters in 40 GB
    1.5b          all weights in 24 GB          7b-lora-4bit  adapters on weights of 4 bits in 24 GB

The recipes are recipes/alfworld*.toml on generated households, with random weights of the real shape. What it answers is noise, so every
attempt lasts to the turn limit; both are shorter than in the recipe (--turns, --response). Settings are chosen as `turnwise train` chooses
them on such a card. The limit is set before anything is allocated. It holds for what torch allocates, so the CUDA context is subtracted
from it first. `predicted_in_use_gb` is to be compared with `measured_peak_gb`, and `predicted_peak_gb` with the limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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

RECIPES = Path(__file__).parent.parent / "recipes"
TINY = ModelShape("tiny", 64, 128, 2, 4, 2, 4000, 16, tied=True)


@dataclass(frozen=True)
class Case:
    """A recipe, a model's shape, and the gigabytes of the card."""

    recipe: str
    shape: ModelShape
    limit: float
    settings: tuple[str, ...] = ()


CASES = {
    "0.5b": Case("alfworld.toml", SHAPES["0.5b"], 12),
    "1.5b": Case("alfworld.toml", SHAPES["1.5b"], 24),
    "7b-lora": Case("alfworld-7b-lora.toml", SHAPES["7b"], 40),
    "7b-lora-4bit": Case("alfworld-7b-lora.toml", SHAPES["7b"], 24, ("model.lora.base=4bit",)),  # needs bitsandbytes
}


@contextmanager
def uninitialised() -> Iterator[None]:
    """Inside, models are made without filling their weights, which would take minutes."""
    before = nn.Linear.reset_parameters, nn.Embedding.reset_parameters
    nn.Linear.reset_parameters = nn.Embedding.reset_parameters = lambda self: None
    Qwen2ForCausalLM._init_weights = lambda self, module: None  # inherited otherwise
    try:
        yield
    finally:
        nn.Linear.reset_parameters, nn.Embedding.reset_parameters = before
        del Qwen2ForCausalLM._init_weights


def random_model(shape: ModelShape) -> Any:
    """A model of this shape in float32 on the CPU, as a folder is loaded. One block of random numbers fills all matrices."""
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
    with uninitialised():
        model = Qwen2ForCausalLM(config)
    block = 0.02 * torch.randn(2**20, generator=torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        flat = parameter.data.view(-1)
        if parameter.dim() > 1:
            for start in range(0, len(flat), len(block)):
                part = flat[start : start + len(block)]
                part.copy_(block[: len(part)])
        elif name.endswith("bias"):
            flat.zero_()
    return model.eval()


class RandomSystem(System):
    """The parts of a run with random weights of a shape, and a tokenizer of the environment's words."""

    shape: ModelShape = TINY

    def _load(self) -> tuple[Any, Any]:
        own, sample = self.config.env, 4 if self.shape is TINY else 40
        _, tokenizer = build_tiny_for(own.name, options=dict(own.options), sample=sample, layers=1, hidden=16, heads=1, limits=self.limits)
        return random_model(self.shape), tokenizer


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
        system = RandomSystem(config, say=lambda text: print(text, file=sys.stderr))
        try:
            system.check()
            run_iterations(run, system, restore(run, system, system.say), Reporter())
            tokens = system.learner.settings.tokens_per_batch
        finally:
            system.close()
        rows = [row for row in run.metrics() if row["iteration"] > 0]
    return {"case": name, "recipe": case.recipe, "limit_gb": case.limit} | predicted(found) | measured(rows, tokens)


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
    """Each case in a process of its own, because a limit holds for a process."""
    found = []
    for name in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", name, *words], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            found.append({"case": name, "limit_gb": CASES[name].limit, "failed": done.returncode})
        else:
            found.append(json.loads(done.stdout))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("all", *CASES), default="all")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--turns", type=int, default=10, help="turn limit")
    parser.add_argument("--response", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.case != "all":
        publish(measure(options.case, options), options.out)
        return
    words = [f"--iterations={options.iterations}", f"--turns={options.turns}", f"--response={options.response}"]
    publish(every_case(options, [*words, *(["--tiny"] if options.tiny else [])]), options.out)


if __name__ == "__main__":
    main()
