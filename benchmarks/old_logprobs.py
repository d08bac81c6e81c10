"""What do the engine's log-probs as old log-probs do to learning? One recipe with each choice, from the same start.

    python benchmarks/old_logprobs.py recipes/numberline-tiny.toml --iterations 20 --out benchmarks/old_logprobs.json
    python benchmarks/old_logprobs.py recipes/quickstart.toml --iterations 16 --noise 0 0.022 --out benchmarks/old_logprobs.json

On a CPU in float32, engine and learner agree to the last digits. `--noise` puts the difference of a GPU in bfloat16 into what the engine
reports: independent normal noise whose mean distance is that number of nats. That is worse than a GPU, where a token is drawn from the
distribution whose log-prob is reported.

Every seed has one warm start, from which all its runs begin. FILE keeps what is done: the same command again makes the runs that are
missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import turnwise as tw
from turnwise.collect.source import LocalSource
from turnwise.runs.folder import Run
from turnwise.util.files import write_text_atomically

METRICS = (
    "engine_gap",
    "engine_gap_max",
    "ratio",
    "clip_low",
    "clip_high",
    "kl_old_k3",
    "grad_norm",
    "old_from_engine",
    "seconds_old_logprobs",
)


class Noise:
    """Changes what engines report, from now on. `distance` is its mean absolute value."""

    def __init__(self) -> None:
        self.distance, self.chance = 0.0, np.random.default_rng(0)
        plain = LocalSource.collect

        def collect(source: Any, plan: Any) -> Any:
            found = plain(source, plan)
            for trajectory in found.trajectories if self.distance else ():
                for turn in trajectory.turns:
                    spread = self.distance * math.sqrt(math.pi / 2)
                    turn.logprobs = (np.asarray(turn.logprobs) + self.chance.normal(0, spread, len(turn.logprobs))).tolist()
            return found

        LocalSource.collect = collect  # type: ignore[method-assign]

    def begin(self, distance: float, seed: int) -> None:
        self.distance, self.chance = distance, np.random.default_rng(seed)


def start(recipe: Path, seed: int, out: Path) -> Path:
    """The folder of a model after the recipe's warm start."""
    found = tw.train(recipe, quiet=True, out=str(out), name="start", iterations=1, seed=seed, **{"learner.lr": 1e-30, "eval.n": 1})
    return Path(found.folder) / "model"


def one(recipe: Path, seed: int, how: str, model: Path, iterations: int, out: Path) -> dict[str, Any]:
    """Train: success before and after, in training, and means of what tells about the ratio."""
    changes = {"model.path": str(model), "sft": None, "learner.old_logprobs": how, "eval.every": 0, "run.keep_rollouts": 0}
    found = tw.train(recipe, quiet=True, out=str(out), name="run", iterations=iterations, seed=seed, eval={"seed": seed}, **changes)
    lines = Run.open(found.folder).metrics()
    return {
        "success": [round(line["eval/success"], 4) for line in lines if "eval/success" in line],
        "train_success": [round(line["collect/success"], 4) for line in lines[1:]],
        "means": {
            name: statistics.fmean(values)
            for name in METRICS
            if (values := [line[f"learner/{name}"] for line in lines if f"learner/{name}" in line])
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[500, 501, 502])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.003, 0.022])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    own = known.setdefault(options.recipe.stem, {"iterations": options.iterations, "runs": {}})
    noise = Noise()
    for seed in options.seeds:
        wanted = [(f"{how}, noise {distance:g}, seed {seed}", how, distance) for how, distance in variants(options.noise)]
        with tempfile.TemporaryDirectory() as folder:
            model = None
            for number, (name, how, distance) in enumerate(wanted):
                if name in own["runs"]:
                    continue
                noise.begin(0.0, seed)
                model = model or start(options.recipe, seed, Path(folder) / "start")
                noise.begin(distance, seed)
                own["runs"][name] = one(options.recipe, seed, how, model, options.iterations, Path(folder) / str(number))
                write_text_atomically(options.out, json.dumps(known, indent=1) + "\n")
                print(name, own["runs"][name]["success"], flush=True)


def variants(noise: list[float]) -> list[tuple[str, float]]:
    return [("learner", 0.0), *(("auto", distance) for distance in noise)]


if __name__ == "__main__":
    main()
