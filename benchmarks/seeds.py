"""How many seeds it takes to see a difference between two algorithms, and how often each test is wrong if there is none.

    python benchmarks/seeds.py --write

Runs are simulated: an algorithm has a mean success, each seed's run varies around it with the given spread, tasks differ in difficulty,
and every run plays the same panel once. Two algorithms have the same number of seeds each, and equal seeds do not help (if they do,
because a warm start is shared, fewer are needed). The spreads that were observed in committed comparisons are also listed.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import paired_t, sign_flip
from turnwise.util.student import t_quantile

HERE = Path(__file__).parent
SEEDS, GAPS, SPREADS, PANEL, MEAN = (3, 5, 6, 8, 10, 15), (0.0, 0.05, 0.10, 0.15, 0.20), (0.03, 0.06, 0.10), 128, 0.6
DIFFICULTY = 1.5  # standard deviation of the tasks' difficulty, in logits
Array = NDArray[np.float64]


def play(rng: np.random.Generator, trials: int, seeds: int, gap: float, spread: float, panel: int = PANEL) -> Array:
    """Success of every attempt: trials × two algorithms × seeds × tasks."""
    means = np.array([MEAN + gap / 2, MEAN - gap / 2])[None, :, None]
    runs = np.clip(means + spread * rng.standard_normal((trials, 2, seeds)), 0.01, 0.99)
    widened = np.log(runs / (1 - runs)) * math.sqrt(1 + math.pi * DIFFICULTY**2 / 8)  # so that the mean over tasks is about `runs`
    logits = widened[..., None] + DIFFICULTY * rng.standard_normal((trials, 1, 1, panel))
    return (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float64)


def found_by_t(differences: Array) -> Array:
    """Which trials Student's paired test calls different at 5 %: trials × seeds → trials."""
    n = differences.shape[1]
    mean, error = differences.mean(axis=1), differences.std(axis=1, ddof=1) / math.sqrt(n)
    return np.abs(mean) > t_quantile(0.975, n - 1) * error + 1e-12


def found_by_flips(differences: Array) -> Array:
    """The same for flipping signs, exactly."""
    n = differences.shape[1]
    signs = 1.0 - 2.0 * ((np.arange(1 << (n - 1))[:, None] >> np.arange(n)) & 1)
    observed = np.abs(differences.sum(axis=1))
    reached = np.zeros(len(differences))
    for part in np.array_split(signs, max(1, len(signs) // 1024)):
        reached += (np.abs(differences @ part.T) >= observed[:, None] - 1e-9).sum(axis=1)
    return reached / len(signs) <= 0.05


def check_against_the_shipped_functions(differences: Array) -> None:
    """The fast forms above decide as the package's own functions do."""
    for row, t, flips in zip(differences, found_by_t(differences), found_by_flips(differences), strict=True):
        assert ((paired_t(row) or 0.0 if np.ptp(row) else 1.0) <= 0.05) == t and (sign_flip(row) <= 0.05) == flips


def power(trials: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """How often each test over seeds finds a difference, by spread, difference and number of seeds."""
    rows = []
    for spread in SPREADS:
        for gap in GAPS:
            for seeds in SEEDS:
                parts = [play(rng, 100, seeds, gap, spread).mean(axis=3) for _ in range(trials // 100)]
                success = np.concatenate(parts)
                differences = np.round(success[:, 0] - success[:, 1], 12)
                if not rows:
                    check_against_the_shipped_functions(differences[:200])
                rows.append(
                    {
                        "spread": spread,
                        "difference": gap,
                        "seeds": seeds,
                        "found_by_t": round(float(found_by_t(differences).mean()), 3),
                        "found_by_flips": round(float(found_by_flips(differences).mean()), 3),
                        "spread_of_success": round(float(success[:, 0].std(axis=1, ddof=1).mean()), 3),
                    }
                )
    return rows


def tasks_alone(trials: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """How often a test over tasks calls two EQUAL algorithms different: the reason why seeds are needed."""
    rows = []
    for spread in (0.0, *SPREADS):
        for seeds in (1, 3, 5):
            played = play(rng, trials, seeds, 0.0, spread)
            won = np.round(played.mean(axis=2), 12)
            wrong = np.mean([sign_flip(np.round(one - other, 12), draws=2000) <= 0.05 for one, other in won])
            rows.append({"spread": spread, "seeds": seeds, "called_different": round(float(wrong), 3)})
    return rows


def observed() -> dict[str, dict[str, Any]]:
    """Spreads over seeds in committed comparisons."""
    found = {}
    for path in sorted((HERE.parent / "docs" / "results").glob("*/comparison.json")):
        for group in json.loads(path.read_text())["groups"]:
            if len(values := group["successes"]) > 1:
                name = f"{path.parent.name}: {group['label']}"
                found[name] = {
                    "seeds": len(values),
                    "success": round(float(np.mean(values)), 3),
                    "spread": round(float(np.std(values, ddof=1)), 3),
                }
    return found


def as_lines(result: dict[str, Any]) -> str:
    """JSON with one row per line."""
    parts = []
    for name, value in result.items():
        rows = [json.dumps(row) for row in value] if isinstance(value, list) else None
        parts.append(f" {json.dumps(name)}: " + (json.dumps(value) if rows is None else "[\n  " + ",\n  ".join(rows) + "\n ]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write seeds.json beside this file")
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    result = {
        "settings": {"trials": asked.trials, "seed": asked.seed, "panel": PANEL, "mean": MEAN, "difficulty": DIFFICULTY},
        "observed_spread": observed(),
        "power": power(asked.trials, rng),
        "tests_over_tasks_of_equal_algorithms": tasks_alone(asked.trials // 4, rng),
    }
    text = as_lines(result)
    print(text, end="")
    if asked.write:
        write_text_atomically(HERE / "seeds.json", text)


if __name__ == "__main__":
    main()
