"""Warm start or reinforcement? One budget is split between the two in several ways, and the table shows what came of each.

    python benchmarks/budget.py recipes/numberline-tiny.toml --samples 6000 --seeds 3 --write
    python benchmarks/budget.py recipes/quickstart.toml --seconds 240 --shares 0.1,0.25,0.5,0.75 env.max_turns=9

The budget is in samples (turns that are learned from, each time they are) or in seconds. A short pilot run measures what a step of the warm
start and an iteration cost. A share s of the budget then buys `sft.steps`, and the rest buys `iterations`. Evaluations are not counted.
Everything else stays as the recipe says, so the learning rates of both parts are those of the recipe: a schedule that falls over the run
ends earlier. Further words are settings, as for `turnwise train`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import turnwise as tw
from turnwise.recipe.reading import parse_override
from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import t_interval

HERE = Path(__file__).parent
PILOT = {"sft.steps": 20, "iterations": 3}
FIXED: dict[str, Any] = {"quiet": True, "sft.until": None, "sft.at_least": None, "eval.every": 0, "run.checkpoint_every": 0}


def costs(metrics: list[dict[str, float]], unit: str) -> tuple[float, float]:
    """What a step of the warm start costs, and an iteration, by the log of a pilot run."""
    start, iterations = metrics[0], metrics[1:]
    if unit == "seconds":
        return start["sft/seconds_update"] / start["sft/steps"], sum(line["time/iteration"] for line in iterations) / len(iterations)
    learned = start["sft/turns"] * start["sft/epochs"]
    return learned / start["sft/steps"], sum(line["collect/turns"] for line in iterations) / len(iterations)


def split(budget: float, share: float, step: float, iteration: float) -> dict[str, int]:
    """How many steps and iterations a budget buys, if this share of it goes to the warm start."""
    return {"sft.steps": int(share * budget / step + 1e-9), "iterations": int((1 - share) * budget / iteration + 1e-9)}


def measure(recipe: str, changes: dict[str, Any], out: str) -> list[dict[str, float]]:
    """The log of one run. Without steps there is no warm start."""
    own = {**FIXED, **changes, "out": out}
    if own["sft.steps"] == 0:
        own = {key: value for key, value in own.items() if not key.startswith("sft.")} | {"sft": None}
    return list(tw.train(recipe, **own).metrics)


def table(recipe: str, budget: float, unit: str, shares: list[float], seeds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Every share, with every seed."""
    with tempfile.TemporaryDirectory() as out:
        step, iteration = costs(measure(recipe, {**changes, **PILOT, "name": "pilot"}, out), unit)
        rows = []
        for share in shares:
            bought = split(budget, share, step, iteration)
            runs = [measure(recipe, {**changes, **bought, "seed": n, "name": f"{share}-{n}"}, out) for n in range(seeds)]
            success = [run[-1]["eval/success"] for run in runs]
            before = [run[0]["eval/success"] for run in runs]
            row = {"share": share, **bought, "after_warm_start": sum(before) / seeds, "success": sum(success) / seeds, "seeds": success}
            interval = t_interval(success)
            rows.append(row | ({"low": max(interval[0], 0.0), "high": min(interval[1], 1.0)} if interval is not None else {}))
    return {
        "recipe": Path(recipe).name,
        "budget": budget,
        "unit": unit,
        "step": step,
        "iteration": iteration,
        "changes": changes,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", help="settings, as KEY=VALUE")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--samples", type=float)
    group.add_argument("--seconds", type=float)
    parser.add_argument("--shares", default="0,0.25,0.5,0.75,1", help="of the budget for the warm start")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="keep the result beside this file")
    given = parser.parse_intermixed_args()
    unit = "samples" if given.samples is not None else "seconds"
    shares = [float(share) for share in given.shares.split(",")]
    changes = dict(map(parse_override, given.changes))
    found = table(given.recipe, given.samples if unit == "samples" else given.seconds, unit, shares, given.seeds, changes)
    text = json.dumps(found, indent=1)
    print(text)
    if given.write:
        write_text_atomically(HERE / "budget.json", text + "\n")


if __name__ == "__main__":
    main()
