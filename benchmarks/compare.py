"""How long it takes to compare sixty runs.

    python benchmarks/compare.py --write

Writes run folders of the usual size (150 iterations, metrics of 60 numbers, an evaluation of 128 tasks every 10), six algorithms × ten
seeds, into a temporary folder and times `turnwise compare` as a separate process, from the command to the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml

HERE = Path(__file__).parent
ALGORITHMS = ("gigpo", "grpo", "rloo", "hgpo", "dr_grpo", "reinforce_pp")
SEEDS, ITERATIONS, TASKS = 10, 150, 128


def write_run(out: Path, name: str, algorithm: str, seed: int) -> None:
    config = Config.load(None, {"name": name, "credit.name": algorithm, "seed": seed, "model.tiny.max_length": 4096})
    folder, chance = out / name, random.Random(f"{algorithm} {seed}")
    (folder / "evals").mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(config))
    (folder / "summary.json").write_text('{"finished": true}')
    lines = []
    for iteration in range(ITERATIONS + 1):
        line: dict[str, Any] = {"iteration": iteration} | {f"learner/number_{i}": chance.random() for i in range(60)}
        line |= {"collect/turns": 5000.0, "collect/response_tokens": 250000.0, "time/iteration": 30.0}
        if iteration % 10 == 0:
            won = [chance.random() < iteration / 200 for _ in range(TASKS)]
            line["eval/success"] = sum(won) / TASKS
            (folder / "evals" / f"{iteration:06d}.json").write_text(json.dumps(evaluation(won)))
        lines.append(json.dumps(line) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))


def evaluation(won: list[bool]) -> dict[str, Any]:
    outcomes = [{"task": f"task-{i}", "success": w, "reward": float(w), "turns": 9, "stop": "done"} for i, w in enumerate(won)]
    settings = {"split": "valid", "temperature": 0.4, "max_turns": 50, "panel_hash": "ab" * 16, "panel_size": TASKS, "repeats": 1}
    return settings | {"outcomes": outcomes}


def measure(command: list[str]) -> tuple[float, float]:
    """Wall-clock seconds and CPU seconds; other work on the machine does not change the latter."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write compare.json beside this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in ALGORITHMS:
            for seed in range(SEEDS):
                write_run(Path(folder), f"{algorithm}-{seed}", algorithm, seed)
        command = [sys.executable, "-m", "turnwise", "compare", folder, "--target", "0.5"]
        timed = [measure(command) for _ in range(3)]
    result = {
        "runs": len(ALGORITHMS) * SEEDS,
        "pairs": len(ALGORITHMS) * (len(ALGORITHMS) - 1) // 2,
        "iterations": ITERATIONS,
        "seconds": round(min(seconds for seconds, _ in timed), 2),
        "cpu_seconds": round(min(cpu for _, cpu in timed), 2),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    publish(result, HERE / "compare.json" if asked.write else None, indent=2)


if __name__ == "__main__":
    main()
