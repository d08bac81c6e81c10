"""What the cluster path costs: the same small recipe plain and with one engine as an actor, in turn, in one run. Prints JSON and a table.

    python benchmarks/cluster_overhead.py                                         # the tiny model on a CPU
    python benchmarks/cluster_overhead.py --model FOLDER --device cuda --recipe recipes/alfworld.toml engine.name=native
    python benchmarks/cluster_overhead.py --rounds 3 collect.groups=8 cluster.transfer=store
    python benchmarks/cluster_overhead.py … engine.name=vllm --kinds cluster       # only whether vLLM runs inside an actor, and how fast

Seconds per iteration and per phase are medians over all iterations but the first of each run, which warms up. `ratio` is cluster / plain of
the whole iteration. Both must give the same weights: `same_weights` says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from results import publish
from safetensors.torch import load_file

import turnwise as tw
from turnwise.config.recipes import parse_override
from turnwise.runs.folder import Run

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("collect", "credit", "update", "iteration")


def run(recipe: Path, out: Path, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One run: seconds by phase and iteration, and its weights."""
    start = time.perf_counter()
    result = tw.train(recipe, quiet=True, out=str(out), name=name, **changes)
    lines = [line for line in Run.open(result.folder).metrics() if line["iteration"] > 1]
    seconds = {phase: [line[f"time/{phase}"] for line in lines] for phase in PHASES}
    weights = {path.name: load_file(path) for path in sorted((result.folder / "model").glob("*.safetensors"))}
    return {"seconds": seconds, "whole": time.perf_counter() - start, "weights": weights}


def median(runs: list[dict[str, Any]], phase: str) -> float:
    return statistics.median(seconds for one in runs for seconds in one["seconds"][phase])


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[file][name], right[file][name]) for file in left for name in left[file].keys() | right[file].keys()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.toml")
    parser.add_argument("--model", help="a model's folder; default: what the recipe names")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda", "auto"])
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2, help="how often both are run, in turn")
    parser.add_argument("--kinds", nargs="+", default=["plain", "cluster"], choices=["plain", "cluster"])
    parser.add_argument("--seconds", type=float, default=540.0, help="no run is started that would probably end later")
    parser.add_argument("--out", type=Path, help="a file for the result")
    parser.add_argument("overrides", nargs="*", help="settings of the recipe, as key=value")
    given = parser.parse_intermixed_args()
    shared: dict[str, Any] = {"device": given.device, "iterations": given.iterations, "sft": None, "eval.n": 1, "run.checkpoint_every": 0}
    shared |= {"model.path": given.model} if given.model else {}
    changes = shared | dict(parse_override(text) for text in given.overrides)
    plain = {key: value for key, value in changes.items() if not key.startswith("cluster.")}
    both = {"plain": plain, "cluster": {"cluster.engines": 1} | changes}
    kinds = {kind: both[kind] for kind in given.kinds}
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    begun, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for kind, settings in kinds.items():
                if number and time.monotonic() - begun + longest > given.seconds:
                    continue
                runs[kind].append(run(given.recipe, Path(folder), f"{kind}{number}", settings))
                longest = max(longest, runs[kind][-1]["whole"])
                print(f"{kind} {number}: {runs[kind][-1]['whole']:.1f} s in all", file=sys.stderr)
    medians = {kind: {phase: median(found, phase) for phase in PHASES} for kind, found in runs.items()}
    ratios = {phase: medians["cluster"][phase] / max(medians["plain"][phase], 1e-9) for phase in PHASES} if len(kinds) == 2 else {}
    first = next(iter(runs.values()))[0]
    report = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "recipe": given.recipe.name,
        "settings": changes,
        "seconds": medians,
        "ratio": ratios.get("iteration"),
        "ratios": ratios,
        "whole_run_seconds": {kind: [one["whole"] for one in found] for kind, found in runs.items()},
        "same_weights": all(same(first["weights"], one["weights"]) for found in runs.values() for one in found),
    }
    publish(json.loads(json.dumps(report, default=str)), given.out)
    print(f"{'seconds':10}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'ratio':>12}")
    for phase in PHASES:
        shown = "".join(f"{medians[kind][phase]:12.3f}" for kind in kinds)
        print(f"{phase:10}{shown}{ratios.get(phase, float('nan')):12.3f}")


if __name__ == "__main__":
    main()
