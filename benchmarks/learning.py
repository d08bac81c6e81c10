"""What is learned, and how far one may trust a comparison.

python benchmarks/learning.py quickstart --seeds 0 1 2 --write     the quickstart's recipe with four algorithms
python benchmarks/learning.py budget recipes/numberline-tiny.toml --samples 6000 --seeds 3 --write
python benchmarks/learning.py intervals --write                    how often confidence intervals hold the true value (simulated)
python benchmarks/learning.py seeds --write                        how many seeds it takes to see a difference (simulated)
python benchmarks/learning.py trl gigpo START --write trl-gigpo    ALFWorld in TRL with our credit; also grpo, and turnwise (needs a GPU)
python benchmarks/learning.py speedrun START --write               ALFWorld on one GPU: seconds until 85 and 90 % of a panel are won
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench import ROOT, Part, main, read_results
from numpy.typing import NDArray

import turnwise as tw
from turnwise.agent.agent import Agent
from turnwise.collect.hooks import Hooks
from turnwise.data.attempts import Start
from turnwise.envs import registry
from turnwise.methods.planning import TaskSlots
from turnwise.recipe.reading import parse_override, recipe_layers
from turnwise.recipe.schema import Config, config_of
from turnwise.setup.build import LoadedModel, build_agent, load_tokenizer
from turnwise.util.statistics import (
    by_cluster,
    mean_and_error,
    paired_interval,
    paired_t,
    sign_flip,
    t_interval,
    t_quantile,
    task_interval,
    wilson,
)

# -- the quickstart with four algorithms --------------------------------------------------------------------------------------------------

RECIPE = ROOT / "recipes" / "quickstart.toml"
ALGORITHMS: dict[str, list[str]] = {
    "gigpo": [],
    "grpo": ["credit.name=grpo"],
    "rloo": ["credit.name=rloo"],
    "ppo": ["credit.name=gae", "learner.value.level=turn"],
}


def train(name: str, seed: int, folder: Path, changes: list[str]) -> dict[str, Any]:
    """One run, or what is left of it from before."""
    run_folder = folder / f"{name}-{seed}"
    if not (run_folder / "summary.json").is_file():
        command = [sys.executable, "-m", "turnwise", "train", str(RECIPE), f"seed={seed}", f"out={folder}", f"name={run_folder.name}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.run([*command, *ALGORITHMS[name], *changes], env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(
                f"{run_folder.name} ended with exit code {process.returncode}:\n{process.stderr[-2000:] or process.stdout[-2000:]}"
            )
    summary = json.loads((run_folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    curve = {line["iteration"]: round(line["eval/success"], 4) for line in lines if "eval/success" in line}
    return {key: summary[key] for key in ("success_before", "success_after", "panel_size", "turns", "train_seconds")} | {"curve": curve}


def summarise(results: dict[str, dict[int, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
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


def quickstart_rows(_: str | None = None) -> list[str]:
    """The table of docs/measurements/2026-11-quickstart.md: success in percent, mean ± standard error."""
    titles = {"gigpo": "GiGPO", "grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO"}
    found = []
    for name, row in read_results("learning")["quickstart"]["table"].items():
        cells = [f"{100 * row[key][0]:.1f} ± {100 * row[key][1]:.1f}" for key in ("after", "mean_of_evaluations")]
        found.append(f"| {titles[name]} | {100 * row['before']:.1f} | {' | '.join(cells)} |")
    return found


def quickstart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart-comparison"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], help="further settings for every run, e.g. iterations=2")


def measure_quickstart(options: argparse.Namespace) -> dict[str, Any]:
    """The quickstart's recipe with four algorithms, from the same warm start and on the same tasks: what does each reach?

    A seed fixes the model's first weights, the warm start, the order of the tasks and all later random numbers, so the runs of one seed
    differ only in the algorithm. Every run is a separate process with one thread; `--jobs` of them run at a time. Finished runs in `--runs`
    are kept."""
    options.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for seed in options.seeds for name in options.algorithms]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip(jobs, pool.map(lambda job: train(*job, options.runs, options.changes), jobs), strict=True))
    runs = {name: {seed: results[name, seed] for seed in options.seeds} for name in options.algorithms}
    return {"machine": platform.machine(), "changes": options.changes, "table": summarise(runs), "runs": runs}


# -- a budget, split between warm start and reinforcement ---------------------------------------------------------------------------------

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


def log_of(recipe: str, changes: dict[str, Any], out: str) -> list[dict[str, float]]:
    """The log of one run. Without steps there is no warm start."""
    settings = {**FIXED, **changes, "out": out}
    if settings["sft.steps"] == 0:
        settings = {key: value for key, value in settings.items() if not key.startswith("sft.")} | {"sft": None}
    return list(tw.train(recipe, **settings).metrics)


def compare_shares(recipe: str, budget: float, unit: str, shares: list[float], seeds: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Every share, with every seed."""
    with tempfile.TemporaryDirectory() as out:
        step, iteration = costs(log_of(recipe, {**changes, **PILOT, "name": "pilot"}, out), unit)
        rows = []
        for share in shares:
            bought = split(budget, share, step, iteration)
            runs = [log_of(recipe, {**changes, **bought, "seed": n, "name": f"{share}-{n}"}, out) for n in range(seeds)]
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


def budget_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--samples", type=float)
    group.add_argument("--seconds", type=float)
    parser.add_argument("--shares", default="0,0.25,0.5,0.75,1", help="of the budget for the warm start")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], help="settings, as KEY=VALUE")


def measure_budget(options: argparse.Namespace) -> dict[str, Any]:
    """Warm start or reinforcement? One budget is split between the two in several ways.

    The budget is in samples (turns that are learned from, each time they are) or in seconds. A short pilot run measures what a step of the
    warm start and an iteration cost. A share s of the budget then buys `sft.steps`, and the rest buys `iterations`. Evaluations are not
    counted. Everything else stays as the recipe says, so a schedule that falls over the run ends earlier."""
    unit = "samples" if options.samples is not None else "seconds"
    shares = [float(share) for share in options.shares.split(",")]
    changes = dict(map(parse_override, options.changes))
    return compare_shares(options.recipe, getattr(options, unit), unit, shares, options.seeds, changes)


# -- coverage of intervals ----------------------------------------------------------------------------------------------------------------

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


def simulation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)


def measure_intervals(options: argparse.Namespace) -> dict[str, Any]:
    """How often intervals contain the true value.

    Tasks are drawn from a population (their success rates are Beta distributed, from nearly all or nothing to all alike), each is attempted
    several times, and the interval should contain the population's mean 95 times in 100. For comparison: Wilson's interval if every attempt
    counted as independent. Differences: both models play the same panel of scenarios with equally hard variants. Models differ on average
    by `gap`, and by more or less from scenario to scenario. For comparison: the percentile bootstrap of single tasks. `false_findings`: how
    often a test over tasks has p up to 0.05 with a gap of 0, with the signs of scenarios flipped, and with those of single tasks."""
    rng = np.random.default_rng(options.seed)
    rows = [
        {"tasks": name, "panel": tasks, "repeats": repeats} | coverage(rng, options.trials, a, b, tasks, repeats)
        for name, (a, b) in POPULATIONS.items()
        for tasks, repeats in SIZES
    ]
    pairs = [
        {"tasks": name, "scenarios": scenarios, "variants": variants, "repeats": repeats, "gap": gap}
        | differences(rng, options.trials, POPULATIONS[name], gap, scenarios, variants, repeats)
        for name in ("different", "hard")
        for scenarios, variants, repeats in PAIRED
        for gap in (0.0, 0.15)
    ]
    settings = {"trials": options.trials, "seed": options.seed, "populations": POPULATIONS}
    return {"settings": settings, "coverage": rows, "differences": pairs}


def coverage_rows(_: str | None = None) -> list[str]:
    """The first table of docs/measurements/2026-11-comparing.md."""
    return [
        f"| {row['tasks']} | {row['panel']} × {row['repeats']} | {row['over_tasks']:.1%} | {row['over_attempts']:.1%} |".replace("%", " %")
        for row in read_results("learning")["intervals"]["coverage"]
        if row["repeats"] > 1
    ]


# -- how many seeds -----------------------------------------------------------------------------------------------------------------------

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
    for path in sorted((ROOT / "docs" / "results").glob("*/comparison.json")):
        for group in json.loads(path.read_text())["groups"]:
            if len(values := group["successes"]) > 1:
                name = f"{path.parent.name}: {group['label']}"
                found[name] = {
                    "seeds": len(values),
                    "success": round(float(np.mean(values)), 3),
                    "spread": round(float(np.std(values, ddof=1)), 3),
                }
    return found


def measure_seeds(options: argparse.Namespace) -> dict[str, Any]:
    """How many seeds it takes to see a difference between two algorithms, and how often each test is wrong if there is none.

    Runs are simulated: an algorithm has a mean success, each seed's run varies around it with the given spread, tasks differ in difficulty,
    and every run plays the same panel once. Two algorithms have the same number of seeds each, and equal seeds do not help (if they do,
    because a warm start is shared, fewer are needed). The spreads that were observed in committed comparisons are also listed."""
    rng = np.random.default_rng(options.seed)
    return {
        "settings": {"trials": options.trials, "seed": options.seed, "panel": PANEL, "mean": MEAN, "difficulty": DIFFICULTY},
        "observed_spread": observed(),
        "power": power(options.trials, rng),
        "tests_over_tasks_of_equal_algorithms": tasks_alone(options.trials // 4, rng),
    }


def power_rows(_: str | None = None) -> list[str]:
    """The table of docs/guides/comparing.md: how often a true difference is found, by the number of seeds."""
    cells: dict[str, list[str]] = {}
    for row in read_results("learning")["seeds"]["power"]:
        if row["difference"]:
            label = f"| {100 * row['spread']:.0f} points | {100 * row['difference']:.0f} points | "
            cells.setdefault(label, []).append(f"{100 * row['found_by_t']:.0f} %")
    return [f"{label}{' | '.join(shares)} |" for label, shares in cells.items()]


def equal_rows(_: str | None = None) -> list[str]:
    """The last table of docs/measurements/2026-11-comparing.md: how often a test over tasks calls equal algorithms different."""
    cells: dict[float, list[str]] = {}
    for row in read_results("learning")["seeds"]["tests_over_tasks_of_equal_algorithms"]:
        cells.setdefault(row["spread"], []).append(f"{100 * row['called_different']:.0f} %")
    return [f"| {100 * spread:.0f} points | {' | '.join(shares)} |" for spread, shares in cells.items()]


# -- TRL beside Turnwise ------------------------------------------------------------------------------------------------------------------

GAMES = "alfworld-0.5b-gigpo"  # the recipe whose tasks, groups, lengths and learning rate all arms have


def trl_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arm", choices=["grpo", "gigpo", "turnwise"], help="TRL's own GRPO, TRL with GiGPO's credit, or Turnwise with it")
    parser.add_argument("start", help="the folder of the model that all arms start from")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    parser.add_argument("--rows", type=int, default=16, help="sequences per pass of TRL's learner")
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE", help="another setting of the recipe, for all arms")


def measure_trl(options: argparse.Namespace) -> dict[str, Any]:
    """ALFWorld with a 0.5B model in TRL and in Turnwise: the same games in the same order, seconds of each iteration, success at the end.

    TRL generates with vLLM in its own process. Its rollout function plays with Turnwise's environment and prompts, so that all arms see
    the same tokens."""
    changes = {"model.path": options.start, "seed": options.seed, "iterations": options.iterations, "agent.max_prompt_tokens": 6144}
    changes |= {"eval.every": 0} | dict(map(parse_override, options.change))
    folder = (options.out / f"{options.arm}-{options.seed}").resolve()
    if options.arm == "turnwise":
        given = [f"{key}={value}" for key, value in changes.items()]
        _turnwise("train", GAMES, *given, f"out={folder.parent}", f"name={folder.name}", "eval.n=8")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "time/collect" in line]
        times = {"iteration": "time/iteration", "rollout": "time/collect"}
        rounds = {name: [round(line[key], 3) for line in lines] for name, key in times.items()}
        rounds["success"] = [round(line["collect/success"], 4) for line in lines]
        rounds["turns"] = [round(line["collect/turns"] / line["collect/trajectories"], 2) for line in lines]
    else:
        trl = get_context("spawn").Process(target=train_in_trl, args=(options, config_of(recipe_layers(GAMES), changes), folder))
        trl.start()
        trl.join()  # a process of its own: the evaluation gets the memory back
        rounds = json.loads((folder / "rounds.json").read_text())
    panel = [f"model.path={folder / 'model'}", *(f"{key}={value}" for key, value in changes.items() if key.startswith("agent."))]
    outcome = json.loads(_turnwise("eval", GAMES, *panel, "--split", "valid_seen", "--json"))
    kept = {"success": outcome["success"], "attempts": outcome["attempts"], "interval": outcome["interval"]}
    return {"arm": options.arm, "seed": options.seed, "rounds": rounds, "seconds": statistics.median(rounds["iteration"][1:]), "eval": kept}


def trl_rows(_: str | None = None) -> list[str]:
    """The table of docs/performance/one-gpu.md; seconds are medians without the first iteration."""
    results, rows = read_results("learning"), []
    for arm, title in {"turnwise": "Turnwise, GiGPO", "gigpo": "TRL with our GiGPO", "grpo": "TRL's own GRPO"}.items():
        one, ours = results[f"trl-{arm}"], results["trl-turnwise"]["seconds"]
        cells = (one["seconds"], statistics.median(one["rounds"]["rollout"][1:]), one["seconds"] / ours, 100 * one["eval"]["success"])
        rows.append(f"| {title} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    return rows


def _turnwise(*arguments: str) -> str:
    ended = subprocess.run([sys.executable, "-m", "turnwise", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout


def train_in_trl(options: argparse.Namespace, config: Config, folder: Path) -> None:
    """Train with TRL from the recipe's settings; the model and what was measured are left in `folder`."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    from turnwise.hosts.trl import CreditTrainer

    tokenizer = load_tokenizer(config, Hooks()).tokenizer
    games = Games(config, build_agent(config, LoadedModel(tokenizer)))
    per_step, learner, sampling = config.learner.minibatch_size, config.learner, config.engine
    attempts = config.collect.groups * config.collect.group_size
    arguments = GRPOConfig(
        str(folder),
        seed=options.seed,
        max_steps=options.iterations * attempts // per_step,
        per_device_train_batch_size=options.rows,
        gradient_accumulation_steps=per_step // options.rows,
        steps_per_generation=attempts // options.rows,
        num_generations=config.collect.group_size,
        max_completion_length=sampling.max_tokens,  # of one response: the rollout function plays many
        shuffle_dataset=False,
        learning_rate=learner.lr,
        lr_scheduler_type="constant",
        weight_decay=learner.weight_decay,
        max_grad_norm=learner.clip,
        beta=config.objective.kl_coef,
        gradient_checkpointing=False,
        use_vllm=torch.cuda.is_available(),
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=config.agent.max_prompt_tokens + sampling.max_tokens,
        vllm_importance_sampling_mode="token_truncate",
        generation_kwargs={"stop_token_ids": list(games.agent.stop_ids)},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    given = {"args": arguments, "model": options.start, "processing_class": tokenizer, "rollout_func": games.play}
    given |= {"reward_funcs": rewards, "train_dataset": Dataset.from_list([{"prompt": str(slot)} for slot in range(len(games.starts))])}
    credit = {"gamma": 0.95, "omega": 1.0, "norm": "std"}
    trainer = GRPOTrainer(**given) if options.arm == "grpo" else CreditTrainer(credit="gigpo", credit_options=credit, **given)
    trainer.train()
    now = time.perf_counter()
    trainer.save_model(str(folder / "model"))
    begun = [begin for begin, _ in games.times]
    iterations = [after - before for before, after in pairwise([*begun, now])]
    rollouts = [end - begin for begin, end in games.times]
    rounds = {"iteration": iterations, "rollout": rollouts, "success": games.success, "turns": games.lengths}
    (folder / "rounds.json").write_text(json.dumps({name: [round(value, 4) for value in values] for name, values in rounds.items()}))


def rewards(earned: list[float], **_: Any) -> list[float]:
    return earned


class Games:
    """The recipe's attempts as TRL plays them: all attempts of a batch take a turn, then the next. A prompt of TRL's is a task's number."""

    def __init__(self, config: Config, agent: Agent):
        self.config, self.agent = config, agent
        tasks = registry.tasks(config.env.name, config.env.split, n=config.env.tasks, **config.env.options)
        slots = TaskSlots(tasks, config.seed, config.collect.group_size, config.collect.shuffle)
        self.starts = slots.groups(config.collect.groups * config.iterations)[:: config.collect.group_size]
        attempts = config.collect.groups * config.collect.group_size
        self.environments = [registry.make(config.env.name, **config.env.options) for _ in range(attempts)]
        self.times: list[tuple[float, float]] = []
        self.success: list[float] = []
        self.lengths: list[float] = []

    def play(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        begin = time.perf_counter()
        attempts = [Attempt(self.starts[int(slot)], env, self.agent) for slot, env in zip(prompts, self.environments, strict=True)]
        playing = attempts
        for _ in range(self.config.env.max_turns or 0):
            asked = [list(attempt.context.prompt().ids) for attempt in playing]
            _, responses, log_probs, _ = trainer.vllm_generation.generate(asked, None, num_generations=1)
            for attempt, ids, response, scores in zip(playing, asked, responses, log_probs, strict=True):
                attempt.step(ids, list(response), [score[0] for score in scores], self.config.env.reward_scale)
            playing = [attempt for attempt in playing if not attempt.over]
            if not playing:
                break
        self.times.append((begin, time.perf_counter()))
        self.success.append(sum(attempt.success for attempt in attempts) / len(attempts))
        self.lengths.append(sum(len(attempt.turns) for attempt in attempts) / len(attempts))
        return {
            "prompt_ids": [attempt.ids[: attempt.first] for attempt in attempts],
            "completion_ids": [attempt.ids[attempt.first :] for attempt in attempts],
            "logprobs": [attempt.log_probs for attempt in attempts],
            "env_mask": [attempt.mask for attempt in attempts],
            "turns": [attempt.turns for attempt in attempts],
            "earned": [sum(turn["reward"] for turn in attempt.turns) for attempt in attempts],
        }


class Attempt:
    """One game: its tokens, which of them were sampled, and its turns."""

    def __init__(self, start: Start, env: Any, agent: Agent):
        self.env, self.agent, self.context = env, agent, agent.context()
        self.seen = env.reset(start.task, start.env_seed)
        self.context.start(start.task, self.seen)
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.log_probs: list[float] = []
        self.turns: list[dict[str, Any]] = []
        self.first, self.over, self.success = 0, False, False

    def step(self, asked: list[int], response: list[int], log_probs: list[float], scale: float) -> None:
        self.first = self.first or len(asked)
        between = len(asked) - max(len(self.ids), self.first)
        if between < 0 or asked[: len(self.ids)] != self.ids:
            raise SystemExit("a dialogue was cut: raise agent.max_prompt_tokens")
        self.ids = asked + response
        self.mask += [0] * between + [1] * len(response)
        self.log_probs += [0.0] * between + log_probs
        _, parsed = self.agent.read(response, self.seen)
        transition = self.env.step(parsed.action)
        self.turns.append({"anchor": self.seen.key, "reward": scale * transition.reward, "valid": parsed.valid})
        self.seen, self.over, self.success = transition.observation, transition.done, transition.success
        if not self.over:
            self.context.record(response, parsed, self.seen)


# -- the speed run ------------------------------------------------------------------------------------------------------------------------

MARKS = (0.85, 0.90)  # of the 140 games of valid_seen


def speedrun_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", help="the folder of the common start: turnwise sft alfworld-0.5b-start")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1020, 1021, 1022])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/speedrun"))
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the GPU; each is slower than alone")
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE", help="another setting of the recipe")


def measure_speedrun(options: argparse.Namespace) -> dict[str, Any]:
    """ALFWorld with a 0.5B model: seconds from the common start until 85 and 90 per cent of a panel are won.

    The panel is played after every iteration. Evaluation, start-up and loading are not counted. A record is what the slowest seed takes,
    so that every seed has to clear the mark."""
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = dict(zip(options.seeds, pool.map(lambda seed: speedrun(options, seed), options.seeds), strict=True))
    times = {mark: [run["cleared"].get(mark, {}).get("seconds") for run in runs.values()] for mark in map(str, MARKS)}
    record = {mark: None if None in of_seeds else max(of_seeds) for mark, of_seeds in times.items()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "changes": options.change, "at_once": options.at_once, "record": record, "runs": runs}


def speedrun(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run, which ends when the last mark is cleared."""
    name = f"speedrun-{seed}"
    settings = [f"model.path={options.start}", f"seed={seed}", f"iterations={options.iterations}", f"out={options.out}", f"name={name}"]
    command = [sys.executable, "-m", "turnwise", "train", GAMES, *settings, "eval.every=1", *options.change]
    process, lines = subprocess.Popen(command, stdout=subprocess.DEVNULL), []
    while process.poll() is None:
        time.sleep(0.5)
        log = options.out / name / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] if log.is_file() else []
        if str(MARKS[-1]) in cleared(lines):
            process.send_signal(signal.SIGINT)
            process.wait()
    curve = [round(line["eval/success"], 4) for line in lines if "eval/success" in line]
    return {"cleared": cleared(lines), "curve": curve, "seconds": [round(line["time/iteration"], 3) for line in lines if line["iteration"]]}


def cleared(lines: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """By mark, the iteration whose evaluation clears it first, and the seconds of all iterations until then."""
    found: dict[str, dict[str, float]] = {}
    spent = 0.0
    for line in lines:
        spent += line["time/iteration"] if line["iteration"] else 0.0
        for mark in MARKS:
            if line.get("eval/success", 0.0) >= mark:
                found.setdefault(str(mark), {"iteration": line["iteration"], "seconds": round(spent, 2)})
    return found


PARTS = {
    "quickstart": Part(measure_quickstart, quickstart_options),
    "budget": Part(measure_budget, budget_options),
    "intervals": Part(measure_intervals, simulation_options),
    "seeds": Part(measure_seeds, simulation_options),
    "trl": Part(measure_trl, trl_options),
    "speedrun": Part(measure_speedrun, speedrun_options),
}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
