"""How often intervals contain the true value: that of an evaluation if each task is attempted several times, and that of the difference
of two models if tasks are few or are variants of a few scenarios.

    python benchmarks/intervals.py --write

Tasks are drawn from a population (their success rates are Beta distributed, from nearly all or nothing to all alike), each is attempted
several times, and the interval should contain the population's mean 95 times in 100. For comparison: Wilson's interval if every attempt
counted as independent.

Differences: both models play the same panel of scenarios with equally hard variants. Models differ on average by `gap`, and by more or less
from scenario to scenario. For comparison: the percentile bootstrap of single tasks. `false_findings`: how often a test over tasks has p
up to 0.05 with a gap of 0, with the signs of scenarios flipped, and with those of single tasks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import by_cluster, paired_interval, sign_flip, task_interval, wilson

HERE = Path(__file__).parent
POPULATIONS = {
    "all or nothing": (0.05, 0.05),
    "very different": (0.5, 0.5),
    "different": (2.0, 2.0),
    "hard": (0.5, 4.0),
    "alike": (1e6, 1e6),
}
PAIRED = ((5, 1, 1), (5, 1, 8), (10, 1, 1), (20, 1, 1), (128, 1, 1), (5, 10, 1), (10, 10, 1), (10, 10, 4), (30, 4, 1))
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


def differences(
    rng: np.random.Generator, trials: int, population: tuple[float, float], gap: float, scenarios: int, variants: int, repeats: int
) -> dict[str, float]:
    """The share of trials whose interval of the difference holds the population's, by both rules, and false findings."""
    shape = (trials, scenarios, variants)
    difficulty = rng.beta(*population, size=(trials, scenarios, 1))
    better = np.clip(difficulty + (gap + 0.2 * rng.standard_normal((trials, scenarios, 1))) * 4 * difficulty * (1 - difficulty), 0, 1)
    won = [rng.binomial(repeats, np.broadcast_to(rates, shape)) / repeats for rates in (better, difficulty)]
    panels, truth = np.round(won[0] - won[1], 12).reshape(trials, -1), float((better - difficulty).mean())
    names = [str(scenario) for scenario in range(scenarios) for _ in range(variants)]
    ends = np.array([paired_interval(panel, names, repeats) for panel in panels])
    resampled = rng.integers(0, panels.shape[1], (1000, panels.shape[1]))
    tasks = np.array([np.quantile(panel[resampled].mean(axis=1), [0.025, 0.975]) for panel in panels])
    held = {name: np.mean((low <= truth) & (truth <= high)) for name, (low, high) in (("ours", ends.T), ("bootstrap", tasks.T))}
    rates = {name: round(float(share), 3) for name, share in held.items()} | {"width": round(float(np.diff(ends).mean()), 3)}
    if gap == 0:
        signs = {"clusters": [by_cluster(panel, names) for panel in panels], "tasks": panels}
        for name, rows in signs.items():
            rates[f"false_findings_{name}"] = round(float(np.mean([sign_flip(row, draws=2000) <= 0.05 for row in rows])), 3)
    return rates


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
    pairs: list[dict[str, Any]] = [
        {"tasks": name, "scenarios": scenarios, "variants": variants, "repeats": repeats, "gap": gap}
        | differences(rng, asked.trials, POPULATIONS[name], gap, scenarios, variants, repeats)
        for name in ("different", "hard")
        for scenarios, variants, repeats in PAIRED
        for gap in (0.0, 0.15)
    ]
    settings = {"trials": asked.trials, "seed": asked.seed, "populations": POPULATIONS}
    text = "{\n" + f' "settings": {json.dumps(settings)},\n "coverage": [\n  ' + ",\n  ".join(map(json.dumps, rows))
    text += '\n ],\n "differences": [\n  ' + ",\n  ".join(map(json.dumps, pairs)) + "\n ]\n}\n"
    print(text, end="")
    if asked.write:
        write_text_atomically(HERE / "intervals.json", text)


if __name__ == "__main__":
    main()
