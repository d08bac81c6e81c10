"""The quickstart's recipe with four algorithms, from the same warm start and on the same tasks: what does each reach?

    python benchmarks/quickstart.py --seeds 0 1 2 --write

A seed fixes the model's first weights, the warm start, the order of the tasks and all later random numbers, so the runs of one seed
differ only in the algorithm. Every run is a separate process with one thread; `--jobs` of them run at a time. Finished runs in `--runs`
are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from results import publish

from turnwise.util.statistics import mean_and_error

HERE = Path(__file__).parent
RECIPE = HERE.parent / "recipes" / "quickstart.toml"
ALGORITHMS: dict[str, list[str]] = {
    "gigpo": [],
    "grpo": ["credit.name=grpo"],
    "rloo": ["credit.name=rloo"],
    "ppo": ["credit.name=gae", "learner.value.level=turn"],
}


def run(name: str, seed: int, folder: Path, changes: list[str]) -> dict[str, Any]:
    """One run, or what is left of it from before."""
    place = folder / f"{name}-{seed}"
    if not (place / "summary.json").is_file():
        command = [sys.executable, "-m", "turnwise", "train", str(RECIPE), f"seed={seed}", f"out={folder}", f"name={place.name}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run([*command, *ALGORITHMS[name], *changes], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{place.name} ended with exit code {done.returncode}:\n{done.stderr[-2000:] or done.stdout[-2000:]}")
    summary = json.loads((place / "summary.json").read_text())
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    curve = {line["iteration"]: round(line["eval/success"], 4) for line in lines if "eval/success" in line}
    return {key: summary[key] for key in ("success_before", "success_after", "panel_size", "turns", "train_seconds")} | {"curve": curve}


def table(results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Mean and standard error over seeds: at the end, and over all evaluations after the warm start (how fast it got there)."""
    rows = {}
    for name, runs in results.items():
        after = mean_and_error([one["success_after"] for one in runs.values()])
        area = mean_and_error([sum(list(one["curve"].values())[1:]) / (len(one["curve"]) - 1) for one in runs.values()])
        rows[name] = {
            "seeds": len(runs),
            "before": round(mean_and_error([one["success_before"] for one in runs.values()])[0], 4),
            "after": [round(x, 4) for x in after],
            "mean_of_evaluations": [round(x, 4) for x in area],
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart-comparison"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the result beside this script")
    parser.add_argument("changes", nargs="*", help="further settings for every run, e.g. iterations=2")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    wanted = [(name, seed) for seed in args.seeds for name in args.algorithms]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(wanted, pool.map(lambda job: run(*job, args.runs, args.changes), wanted), strict=True))
    results = {name: {seed: found[name, seed] for seed in args.seeds} for name in args.algorithms}
    report = {"machine": platform.machine(), "changes": args.changes, "table": table(results), "runs": results}
    publish(report, HERE / "quickstart.json" if args.write else None)


if __name__ == "__main__":
    main()
