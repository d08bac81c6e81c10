"""What the cluster path costs: the same small recipe plain and with one engine as an actor, in turn, in one run. Prints JSON and a table.

    python benchmarks/cluster_overhead.py                                         # the tiny model on a CPU
    python benchmarks/cluster_overhead.py --model FOLDER --device cuda --recipe recipes/alfworld.toml engine.name=native
    python benchmarks/cluster_overhead.py --rounds 3 collect.groups=8 cluster.transfer=store
    python benchmarks/cluster_overhead.py … engine.name=vllm --kinds cluster       # only whether vLLM runs inside an actor, and how fast

Seconds per iteration and per phase are medians over all iterations but the first of each run, which warms up. `ratio` is cluster / plain of
the whole iteration. `same_weights` says which runs end with the same weights: all of them where the learner is bitwise repeatable. If two
plain runs differ, so do their games: `work` has the turns and tokens per iteration, and `per_turn` the ratios of seconds per turn. `parts`
has the seconds of the cluster's own parts (`cluster/seconds_…` in docs/metrics.md).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from results import publish

import turnwise as tw
from turnwise.config.recipes import parse_override
from turnwise.runs.folder import Run

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("collect", "credit", "update", "iteration")
WORK = ("turns", "prompt_tokens", "response_tokens")
PARTS = "cluster/seconds_"
Found = dict[str, list[dict[str, Any]]]  # the runs of each kind


def run(recipe: Path, out: Path, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One run: the lines of its log but the first, and a sum of its weights."""
    start = time.perf_counter()
    result = tw.train(recipe, quiet=True, out=str(out), name=name, **changes)
    whole = hashlib.sha256()
    for path in sorted((result.folder / "model").glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    lines = [line for line in Run.open(result.folder).metrics() if line["iteration"] > 1]
    return {"lines": lines, "whole": time.perf_counter() - start, "weights": whole.hexdigest()}


def median(runs: list[dict[str, Any]], name: str, per: str | None = None) -> float:
    """Over all iterations of all runs; `per`: divided by another number of the same iteration."""
    return statistics.median(line[name] / (max(line[per], 1.0) if per else 1.0) for one in runs for line in one["lines"])


def same_weights(runs: Found) -> dict[str, bool]:
    """Whether two runs of a kind, and runs of different kinds, end with the same weights."""
    sums = {kind: [one["weights"] for one in found] for kind, found in runs.items()}
    found = {kind: len(set(own)) == 1 for kind, own in sums.items() if len(own) > 1}
    for left, right in combinations(sums, 2):
        found[f"{left} and {right}"] = all(one == other for one, other in product(sums[left], sums[right]))
    return found


def compared(runs: Found) -> dict[str, Any]:
    """What the runs say about the kinds."""
    seconds = {kind: {phase: median(found, f"time/{phase}") for phase in PHASES} for kind, found in runs.items()}
    per_turn = {kind: {phase: median(found, f"time/{phase}", "collect/turns") for phase in PHASES} for kind, found in runs.items()}

    def ratios(values: dict[str, dict[str, float]]) -> dict[str, float]:
        if not {"plain", "cluster"} <= values.keys():
            return {}
        return {phase: values["cluster"][phase] / max(values["plain"][phase], 1e-9) for phase in PHASES}

    own = [name for name in runs["cluster"][0]["lines"][-1] if name.startswith(PARTS)] if "cluster" in runs else []
    return {
        "seconds": seconds,
        "ratio": ratios(seconds).get("iteration"),
        "ratios": ratios(seconds),
        "per_turn": ratios(per_turn),
        "work": {kind: {name: median(found, f"collect/{name}") for name in WORK} for kind, found in runs.items()},
        "parts": {name.removeprefix(PARTS): median(runs["cluster"], name) for name in own},
        "whole_run_seconds": {kind: [one["whole"] for one in found] for kind, found in runs.items()},
        "same_weights": same_weights(runs),
    }


@contextmanager
def ray_for(kinds: Any) -> Iterator[None]:
    """Ray is started once for all runs."""
    if "cluster" not in kinds:
        yield
        return
    from turnwise.cluster.start import connect, leave

    started = connect()
    try:
        yield
    finally:
        leave(started)


def measured(kinds: dict[str, dict[str, Any]], given: argparse.Namespace) -> Found:
    """Runs of all kinds in turn, in another order every other round."""
    runs: Found = {kind: [] for kind in kinds}
    begun, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder, ray_for(kinds):
        for number in range(given.rounds):
            for kind in list(kinds) if number % 2 == 0 else reversed(kinds):
                if number and time.monotonic() - begun + longest > given.seconds:
                    continue
                runs[kind].append(run(given.recipe, Path(folder), f"{kind}{number}", kinds[kind]))
                longest = max(longest, runs[kind][-1]["whole"])
                print(f"{kind} {number}: {runs[kind][-1]['whole']:.1f} s in all, weights {runs[kind][-1]['weights'][:8]}", file=sys.stderr)
    return runs


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
    runs = measured({kind: both[kind] for kind in given.kinds}, given)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report = {"machine": machine, "recipe": given.recipe.name, "settings": changes} | compared(runs)
    publish(json.loads(json.dumps(report, default=str)), given.out)
    print(f"{'seconds':12}" + "".join(f"{kind:>12}" for kind in runs) + f"{'ratio':>12}{'per turn':>12}")
    for phase in PHASES:
        shown = "".join(f"{report['seconds'][kind][phase]:12.3f}" for kind in runs)
        print(f"{phase:12}{shown}{report['ratios'].get(phase, float('nan')):12.3f}{report['per_turn'].get(phase, float('nan')):12.3f}")
    for name, value in report["parts"].items():
        print(f"{name:12}{'':>{12 * (len(runs) - 1)}}{value:12.3f}")


if __name__ == "__main__":
    main()
