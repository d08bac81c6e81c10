"""What do moments in 8 bits do to AdamW? On a noisy quadratic, next to other ways to store them, and in training runs. On a CPU.

    python benchmarks/moments.py --out benchmarks/moments.json
    python benchmarks/moments.py --recipe recipes/numberline-tiny.toml --iterations 16 --out benchmarks/moments.json

The quadratic has 16 × 256 weights whose gradients have noise and, within a block of 128, differ by up to a factor. The first figure is the
distance from AdamW in float32 after the last step, as a share of the way that it went; the second is the distance from the best weights.
With `--recipe`, every seed has one warm start, from which a run with float32 and one with 8 bits begin. What FILE has is kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from old_logprobs import start
from results import publish
from torch import Tensor

import turnwise as tw
from turnwise.learn import moments
from turnwise.runs.folder import Run

ROWS, SIZE, STEPS, LR, BETAS, EPS = 16, 256, 160, 2e-2, (0.9, 0.999), 1e-8
Stored = Callable[[Tensor, bool, int], Tensor]  # numbers as they come back from where they are stored; signed or not; which step it is


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact(values: Tensor, signed: bool, step: int) -> Tensor:
    return values


def ours(values: Tensor, signed: bool, step: int) -> Tensor:
    codes, scales = torch.empty(values.shape, dtype=torch.uint8), torch.empty(len(values), moments.blocks_of(values))
    moments.pack(values, codes, scales, signed, generator(2 * step + signed))
    return moments.unpack(codes, scales, signed)


def nearest(levels: Tensor, values: Tensor) -> Tensor:
    """Numbers of blocks of 128, each as the nearest of the levels, which are shares of the block's largest number."""
    blocks = values.view(len(values), -1, moments.BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    share = (blocks / largest).contiguous()
    above = torch.searchsorted(levels, share).clamp(1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    return (torch.where(share - low < high - share, low, high) * largest).view(values.shape)


def logarithmic(signed: bool) -> Tensor:
    """The levels of our codes."""
    top = moments.SIGN - 1 if signed else 255
    levels = torch.exp2((torch.arange(1, top + 1) - top) / moments.STEPS)
    return torch.cat([-levels.flip(0), torch.zeros(1), levels]) if signed else torch.cat([torch.zeros(1), levels])


def dynamic(signed: bool) -> Tensor:
    """A dynamic map: the number of leading zero bits is a power of ten, and what is left of the byte a linear fraction of it."""
    found = [0.0, 1.0]
    for power in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (power if signed else power + 1) + 1)
        found += (10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
    levels = torch.tensor(sorted(found))
    return torch.cat([-levels[1:-1].flip(0), levels]) if signed else levels


WAYS: dict[str, Stored] = {
    "float32": exact,
    "this format": ours,
    "the same codes, to the nearest": lambda values, signed, step: nearest(logarithmic(signed), values),
    "a dynamic map, to the nearest": lambda values, signed, step: nearest(dynamic(signed), values),
}


def quadratic(stored: Stored, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW with moments that are stored between steps: the first weights, the last ones, and the best."""
    first, best = (torch.randn(ROWS, SIZE, generator=generator(seed)) for seed in (0, 1))
    slope = factor ** (torch.rand(ROWS, SIZE, generator=generator(2)) - 0.5)
    weight, mean, square = first.clone(), torch.zeros(ROWS, SIZE), torch.zeros(ROWS, SIZE)
    for step in range(1, STEPS + 1):
        gradient = slope * (weight - best + torch.randn(ROWS, SIZE, generator=generator(step + 2)))
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        weight = weight - LR * mean / (1 - BETAS[0] ** step) / ((square / (1 - BETAS[1] ** step)).sqrt() + EPS)
        mean, square = stored(mean, True, step), stored(square, False, step)
    return first, weight, best


def compare() -> dict[str, Any]:
    """By how much gradients differ, then by way."""
    found: dict[str, Any] = {}
    for factor in (1, 100, 10_000):
        first, plain, best = quadratic(exact, factor)
        row = {}
        for name, stored in WAYS.items():
            last = quadratic(stored, factor)[1]
            apart = ((last - plain).norm() / (plain - first).norm()).item()
            row[name] = {"apart": round(apart, 4), "from_the_best": round((last - best).norm().item(), 2)}
        found[f"a factor of {factor:,}"] = row
    return found


def learn(recipe: Path, seeds: list[int], iterations: int) -> dict[str, Any]:
    """Success before and after, and in the last five iterations of training."""
    found: dict[str, Any] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            model = start(recipe, seed, Path(folder) / "start")
            for kind in ("float32", "8bit"):
                changes = {"model.path": str(model), "sft": None, "learner.moments": kind, "eval.every": 0, "run.keep_rollouts": 0}
                out = str(Path(folder) / kind)
                made = tw.train(recipe, quiet=True, out=out, name="run", iterations=iterations, seed=seed, eval={"seed": seed}, **changes)
                lines = Run.open(made.folder).metrics()
                found[f"{kind}, seed {seed}"] = {
                    "success": [round(line["eval/success"], 4) for line in lines if "eval/success" in line],
                    "train_success": [round(line["collect/success"], 4) for line in lines[1:]],
                }
                print(kind, seed, found[f"{kind}, seed {seed}"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, help="train with it, instead of the quadratic")
    parser.add_argument("--seeds", type=int, nargs="+", default=[500, 501, 502])
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out and options.out.is_file() else {}
    if options.recipe is None:
        known["quadratic"] = {"weights": [ROWS, SIZE], "steps": STEPS, "lr": LR, **compare()}
    else:
        known[options.recipe.stem] = {"iterations": options.iterations, **learn(options.recipe, options.seeds, options.iterations)}
    publish(known, options.out)


if __name__ == "__main__":
    main()
