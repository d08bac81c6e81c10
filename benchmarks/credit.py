"""How long credit takes: every algorithm at 6,400 to 409,600 turns, and GiGPO from strings and from integers.

    python benchmarks/credit.py speed --write

Time of one core, best of several repeats; what other processes take on a shared machine is not counted. `growth` is the
exponent p of time ∝ turns^p from 25,600 turns on (1 is linear). A straightforward loop over turns, written for this comparison, runs next
to GiGPO in the same process: a ratio, whatever the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from bench import ROOT, Part, main, read_results

import turnwise as tw
from turnwise.data.rollouts import LEVELS
from turnwise.lab import audit_tables

SIZES = (6_400, 25_600, 102_400, 409_600)
TURNS, GROUP = 50, 8  # of a trajectory, trajectories of a group
PER_TOKEN = 20  # tokens of a turn


def columns(turns: int, seed: int = 0) -> dict[str, Any]:
    """ALFWorld-shaped: groups of 8 trajectories of 50 turns, about 200 states per group, a reward of 10 at the end of half of them."""
    rng = np.random.default_rng(seed)
    trajectories = turns // TURNS
    reward = np.zeros(turns)
    reward[TURNS - 1 :: TURNS] = 10.0 * (rng.random(trajectories) < 0.5)
    group = np.repeat(np.arange(trajectories // GROUP), TURNS * GROUP)
    return {
        "group": group,
        "trajectory": np.repeat(np.arange(trajectories), TURNS),
        "t": np.tile(np.arange(TURNS), trajectories),
        "reward": reward,
        "anchor": (rng.zipf(1.3, turns) % 200) + 200 * group,
        "valid": rng.random(turns) < 0.95,
        "value": rng.normal(size=turns),
        "tokens": np.full(turns, PER_TOKEN),
        "token_value": rng.normal(size=turns * PER_TOKEN),
    }


def best(function: Callable[[], Any], repeats: int = 5) -> float:
    """The least seconds of one core of several runs, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def loop_gigpo(c: dict[str, Any], gamma: float = 0.95) -> list[float]:
    """GiGPO as a plain loop with dictionaries, for scale. Linear already; the public code's returns are quadratic on top of this."""
    rows = list(
        zip(c["group"].tolist(), c["trajectory"].tolist(), c["t"].tolist(), c["reward"].tolist(), c["anchor"].tolist(), strict=True)
    )
    paths: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        paths[row[1]].append(i)
    returns, totals = [0.0] * len(rows), {}
    for key, path in paths.items():
        after = 0.0
        for i in sorted(path, key=lambda i: rows[i][2], reverse=True):
            after = returns[i] = rows[i][3] + gamma * after
        totals[key] = sum(rows[i][3] for i in path)
    episodes: dict[int, dict[int, float]] = defaultdict(dict)
    anchors: dict[tuple[int, int], list[float]] = defaultdict(list)
    for i, row in enumerate(rows):
        episodes[row[0]][row[1]] = totals[row[1]]
        anchors[row[0], row[4]].append(returns[i])

    def moments(xs: list[float]) -> tuple[float, float]:
        mean = sum(xs) / len(xs)
        return mean, (sum((x - mean) ** 2 for x in xs) / max(len(xs) - 1, 1)) ** 0.5 + 1e-6

    by_group = {key: moments(list(values.values())) for key, values in episodes.items()}
    by_anchor = {key: moments(values) for key, values in anchors.items()}
    credit = []
    for i, row in enumerate(rows):
        (mean, std), (step_mean, step_std) = by_group[row[0]], by_anchor[row[0], row[4]]
        credit.append((totals[row[1]] - mean) / std + (returns[i] - step_mean) / step_std)
    return credit


def with_needs(r: tw.Rollouts, entry: Any, seed: int = 0) -> tw.Rollouts:
    """The rollouts with a column of random numbers for everything that an algorithm needs from a signal or a plan."""
    rng = np.random.default_rng(seed)
    missing = [name for name in entry.needed({}) if name.partition(".")[0] in LEVELS and name != "group.peers" and not r.has(name)]
    return r.with_columns({name: rng.normal(size=r.size(name.partition(".")[0])) for name in missing})


def algorithms() -> dict[str, Any]:
    """Milliseconds by size, microseconds per turn at the largest, growth."""
    table: dict[str, Any] = {}
    batches = {turns: tw.Rollouts.from_columns(**columns(turns)) for turns in SIZES}
    for entry in tw.credit.algorithms:
        ready = {turns: with_needs(r, entry) for turns, r in batches.items()}
        table[entry.name] = summary({turns: best(lambda r=r, name=entry.name: tw.credit.compute(name, r)) for turns, r in ready.items()})
    shuffled = {turns: np.random.default_rng(1).permutation(turns) for turns in SIZES}
    fresh = {turns: best(lambda t=turns: tw.credit.compute("gigpo", batches[t].permuted(shuffled[t])), 3) for turns in SIZES}
    table["gigpo, rows shuffled (with the sort)"] = summary(fresh)
    build = {
        turns: best(lambda t=turns: tw.Rollouts.from_columns(**columns(t)), 3) - best(lambda t=turns: columns(t), 3) for turns in SIZES
    }
    table["building the columns, integer anchors"] = summary(build)
    return table


def summary(seconds: dict[int, float]) -> dict[str, Any]:
    large = [turns for turns in seconds if turns >= 25_600]
    growth = np.polyfit(np.log(large), np.log([max(seconds[turns], 1e-9) for turns in large]), 1)[0]
    return {
        "ms": {str(turns): round(1e3 * s, 3) for turns, s in seconds.items()},
        "us_per_turn_at_largest": round(1e6 * seconds[SIZES[-1]] / SIZES[-1], 4),
        "growth": round(float(growth), 3),
    }


def from_strings(turns: int = 6_400, length: int = 400) -> dict[str, Any]:
    """GiGPO from 400-character observations: hashing, columns and credit."""
    c = columns(turns)
    texts = {code: "".join(random.Random(int(code)).choices("abcdefghij klmnop", k=length)) for code in np.unique(c["anchor"])}
    c["anchor"] = ["".join(texts[code]) for code in c["anchor"].tolist()]  # one object a row, as an environment gives them
    seconds = best(lambda: tw.credit.compute("gigpo", tw.Rollouts.from_columns(**c)))
    return {"turns": turns, "characters": length, "distinct": len(texts), "ms": round(1e3 * seconds, 2)}


def side_by_side(turns: int = 6_400) -> dict[str, Any]:
    """A plain Python loop and ours on the same columns, in one run; both from columns to credit."""
    c = columns(turns)
    plain, ours = best(lambda: loop_gigpo(c)), best(lambda: tw.credit.compute("gigpo", tw.Rollouts.from_columns(**c)))
    difference = np.abs(np.array(loop_gigpo(c)) - tw.credit.compute("gigpo", tw.Rollouts.from_columns(**c))).max()
    return {
        "turns": turns,
        "loop_ms": round(1e3 * plain, 2),
        "ours_ms": round(1e3 * ours, 2),
        "ratio": round(plain / ours, 1),
        "largest_difference": float(f"{difference:.2e}"),
    }


def cost_rows(_: str | None = None) -> list[str]:
    """The table of docs/measurements/2026-11-credit.md, one line per algorithm."""
    rows = read_results("credit")["speed"]["algorithms"].items()
    return [
        f"| {name if ' ' in name else f'`{name}`'} | {row['ms']['6400']:.2f} | {row['ms']['409600']:.1f} | {row['growth']:.2f} |"
        for name, row in rows
    ]


def audit_rows(levels: str | None = None) -> list[str]:
    """The tables of 2026-11-credit-audit.md: all methods, or means for `READING; QUESTION; NAME; NAME/CONTROL; …`, a row per name."""
    result = json.loads((ROOT / "docs/measurements/2026-11-credit-audit.json").read_text(encoding="utf-8"))
    if levels is None:
        return [f"| `{label}` | {' | '.join(rest).replace('-', '−')} |" for label, *rest in audit_tables.summary(result)]
    reading, question, *names = levels.split("; ")
    problems = [problem for asked, _, problem in result["settings"]["rows"] if asked == question]
    numbers = result["references"]
    for label, one in result["methods"].items():
        numbers |= {label: one["problems"], **{f"{label}/{control}": each for control, each in one["controls"].items()}}
    cells = {name: [audit_tables.number(numbers[name][problem][reading]["mean"]) for problem in problems] for name in names}
    return [f"| {name} | {' | '.join(row).replace('-', '−')} |" for name, row in cells.items()]


def measure(_: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one core for credit, best of several runs."""
    return {
        "machine": {"python": platform.python_version(), "numpy": np.__version__, "cpu": platform.processor() or platform.machine()},
        "gigpo_against_a_plain_loop": side_by_side(),
        "gigpo_from_strings": from_strings(),
        "algorithms": algorithms(),
    }


PARTS = {"speed": Part(measure)}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
