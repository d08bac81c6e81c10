"""How often the interval of an evaluation contains the true value if each task is attempted several times.

    python benchmarks/intervals.py --write

Tasks are drawn from a population (their success rates are Beta distributed, from nearly all or nothing to all alike), each is attempted
several times, and the interval should contain the population's mean 95 times in 100. For comparison: Wilson's interval if every attempt
counted as independent.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import task_interval, wilson

HERE = Path(__file__).parent
POPULATIONS = {
    "all or nothing": (0.05, 0.05),
    "very different": (0.5, 0.5),
    "different": (2.0, 2.0),
    "hard": (0.5, 4.0),
    "alike": (1e6, 1e6),
}
SIZES = ((10, 10), (30, 4), (128, 2), (128, 1))


def coverage(rng: np.random.Generator, trials: int, a: float, b: float, tasks: int, repeats: int) -> dict[str, float]:
    """The share of trials whose interval holds the mean a / (a + b), by both rules, and their mean widths."""
    won = np.sort(rng.binomial(repeats, rng.beta(a, b, size=(trials, tasks))), axis=1)
    rows, counts = np.unique(won, axis=0, return_counts=True)  # equal results have equal intervals
    attempts = np.full(tasks, repeats)
    ours = np.array([task_interval(row, attempts) for row in rows])
    pooled = np.array([wilson(float(row.sum()), tasks * repeats) for row in rows])
    found = {}
    for name, ends in (("over_tasks", ours), ("over_attempts", pooled)):
        held = (ends[:, 0] <= a / (a + b)) & (a / (a + b) <= ends[:, 1])
        found[name] = round(float(held @ counts) / trials, 3)
        found[f"{name}_width"] = round(float((ends[:, 1] - ends[:, 0]) @ counts) / trials, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write intervals.json beside this file")
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    rows: list[dict[str, Any]] = [
        {"tasks": name, "panel": tasks, "repeats": repeats} | coverage(rng, asked.trials, a, b, tasks, repeats)
        for name, (a, b) in POPULATIONS.items()
        for tasks, repeats in SIZES
    ]
    settings = {"trials": asked.trials, "seed": asked.seed, "populations": POPULATIONS}
    text = "{\n" + f' "settings": {json.dumps(settings)},\n "coverage": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]\n}\n"
    print(text, end="")
    if asked.write:
        write_text_atomically(HERE / "intervals.json", text)


if __name__ == "__main__":
    main()
