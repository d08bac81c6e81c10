"""The tables of docs/results/arena.md, the report, and the data of `credit.name = "auto"`: all from the cards beside this file.

python docs/results/arena/tables.py page     # writes arena.md between its marks, and arena/cpu.html
python docs/results/arena/tables.py auto     # writes turnwise/credit/auto.json, from tuning runs alone
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from regimes import ARENAS

from turnwise.arena.card import Card, read_all
from turnwise.arena.card import points as curve_of
from turnwise.arena.page import page
from turnwise.arena.plan import Arena
from turnwise.arena.results import BASELINES, LEVEL, results, tuning
from turnwise.arena.scores import difference
from turnwise.arena.text import sentences
from turnwise.credit import auto
from turnwise.report.tables import NONE, TextTable, as_markdown, percent, points
from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import holm

HERE = Path(__file__).resolve().parent
PAGE, DATA = HERE.parent / "arena.md", auto.DATA
KNOWN = ("cpu", "houses")  # the arenas that `auto` has its data from; the others check it
CHOICES = ("grpo", "gigpo", "hgpo", "graph_gpo", "pooled_td")  # credits that need nothing but the batch, of methods that are no more


def load(name: str) -> tuple[Arena, dict[str, Card]]:
    return Arena.load(HERE / f"{name}.toml"), read_all([HERE / "cards" / name])


def tuned(arena: Arena, cards: Mapping[str, Card]) -> dict[str, dict[str, float]]:
    """By environment and method, the mean over tuning seeds of the best setting."""
    scores: dict[str, dict[str, float]] = {}
    for line in tuning(arena, cards, {}):
        best = scores.setdefault(line["environment"], {})
        best[line["method"]] = max(line["mean"], best.get(line["method"], 0.0))
    return scores


def final(computed: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The same of the final runs."""
    return {environment: {name: line["mean"] for name, line in lines.items()} for environment, lines in computed["by_environment"].items()}


def write_auto() -> None:
    """What the credit `auto` knows."""
    arenas = {name: load(name) for name in KNOWN}
    looks = json.loads((HERE / "regimes.json").read_text())["regimes"]
    scores = {regime: line for arena, cards in arenas.values() for regime, line in tuned(arena, cards).items()}
    known = {
        name: {key: regime[key] for key in ("family", "features")}
        | {"scores": {credit: round(scores[name][credit], 4) for credit in CHOICES}}
        for name, regime in looks.items()
        if name in scores
    }
    hashes = {name: arena.hash for name, (arena, _) in arenas.items()}
    text = json.dumps({"arenas": hashes, "names": auto.FEATURES, "regimes": known}, indent=1)
    write_text_atomically(DATA, text + "\n")


def matrix(computed: Mapping[str, Any]) -> TextTable:
    """All methods on all environments, in the order of their ranks. A star: a difference that is sure after Holm's correction."""
    means, overall, costs = final(computed), computed["overall"], computed["costs"]
    names = sorted(overall, key=lambda name: overall[name]["rank"])
    best = {environment: max(line.values()) for environment, line in means.items()}
    rows = []
    for name in names:
        cells = [f"**{percent(line[name])}**" if line[name] == best[e] else percent(line[name]) for e, line in means.items()]
        low, high = overall[name]["rank_interval"]
        cells += [percent(overall[name]["mean"]), f"{overall[name]['rank']:g} ({low:.0f}–{high:.0f})"]
        for base in BASELINES:
            line = computed["differences"][base].get(name)
            cells.append(NONE if line is None else points(line["difference"]) + ("*" if (line.get("holm") or 1.0) < LEVEL else ""))
        rows.append([f"`{name}`", *cells, f"{costs[name]['tokens_sampled'] / costs['grpo']['tokens_sampled']:.1f}"])
    headings = ["method", *means, "mean", "rank (95 %)", *(f"− {base}" for base in BASELINES), "tokens"]
    title = (
        f"Success in per cent, mean of {len(computed['complete_seeds'])} seeds; bold: the best; *: p < 0.05 after Holm; tokens: grpo is 1"
    )
    return TextTable(title, headings, rows)


def sensitivity(computed: Mapping[str, Any]) -> TextTable:
    """How much the learning rate matters to each method: the mean over environments of its best, its default and its worst setting."""
    tried: dict[str, dict[str, list[float]]] = {}
    for line in computed["tuning"]:
        tried.setdefault(line["method"], {}).setdefault(line["environment"], []).append(line["mean"])
    rows = []
    for name, by_environment in tried.items():
        columns = [[pick(values) for values in by_environment.values()] for pick in (max, lambda values: values[0], min)]
        rows.append([name, *(percent(math.fsum(column) / len(column)) for column in columns)])
    rows.sort(key=lambda row: -float(row[1]))
    return TextTable("Tuning: the best of three learning rates, the default, and the worst", ["method", "best", "default", "worst"], rows)


def choosing(truth: Mapping[str, Mapping[str, float]]) -> TextTable:
    """What `auto` chooses for a regime whose family had no part in its data, and what that costs against the best and against fixed
    choices."""
    known = auto.regimes()
    rows, sums = [], dict.fromkeys(("auto", *CHOICES), 0.0)
    for name, (chosen, regret) in auto.left_out(known, truth).items():
        best = max(CHOICES, key=lambda credit: truth[name][credit])
        sums["auto"] += regret
        for credit in CHOICES:
            sums[credit] += truth[name][best] - truth[name][credit]
        rows.append([name, chosen, best, points(-regret)])
    rows += [
        [f"mean, always {name}" if name != "auto" else "mean of auto", "", "", points(-total / len(known))] for name, total in sums.items()
    ]
    return TextTable("auto: the regime and its family left out of the data", ["regime", "chosen", "best", "points"], rows)


def by_seed(computed: Mapping[str, Any], environment: str) -> TextTable:
    """All methods on one environment, with the success of every seed."""
    lines, seeds = computed["by_environment"][environment], [str(seed) for seed in computed["seeds"]]
    seeds = [seed for seed in seeds if any(int(seed) in line["scores"] for line in lines.values())]
    rows = []
    for name in sorted(lines, key=lambda name: -lines[name]["mean"]):
        line = lines[name]
        cells = [percent(line["scores"][int(seed)]) if int(seed) in line["scores"] else "" for seed in seeds]
        for base in BASELINES:
            found = line.get(f"to_{base}")
            sure = found is not None and found.get("holm") is not None and found["holm"] < LEVEL
            cells.append(NONE if found is None else points(found["difference"]) + "*" * sure)
        rows.append([f"`{name}`", percent(line["mean"]), *cells])
    title = f"{environment}: success in per cent by seed; differences over the seeds that both have; *: p < 0.05 after Holm"
    return TextTable(title, ["method", "mean", *seeds, *(f"− {base}" for base in BASELINES)], rows)


def over_time(cards: Mapping[str, Card], base: str = "gigpo") -> TextTable:
    """How fast methods learn: the mean of each evaluation over seeds, and of all after the first, minus the base's over shared seeds."""
    curves: dict[str, dict[int, list[float]]] = {}
    for card in cards.values():
        curves.setdefault(card["about"]["method"], {})[card["seed"]] = [point["success"] for point in curve_of(card)[1:]]
    numbers = [point["iteration"] for point in curve_of(next(iter(cards.values())))[1:]]
    areas = {name: {seed: float(np.mean(curve)) for seed, curve in seeds.items()} for name, seeds in curves.items()}
    found = {}
    for name, seeds in areas.items():
        shared = sorted(set(seeds) & set(areas[base]))
        pairs = [np.array([[of[seed] for seed in shared]]) for of in (seeds, areas[base])]
        found[name] = difference(*pairs) if name != base else None
    tested = [name for name, line in found.items() if line is not None and line.p is not None]
    sure = {name for name, p in zip(tested, holm([found[name].p for name in tested]), strict=True) if p < LEVEL}
    rows = []
    for name in sorted(areas, key=lambda name: -float(np.mean(list(areas[name].values())))):
        means = np.mean(list(curves[name].values()), 0)
        minus = NONE if found[name] is None else points(found[name].difference) + "*" * (name in sure)
        rows.append([f"`{name}`", *map(percent, means.tolist()), percent(float(np.mean(list(areas[name].values())))), minus])
    title = f"Success in per cent after so many iterations, and their mean; differences over shared seeds; *: p < {LEVEL} after Holm"
    return TextTable(title, ["method", *map(str, numbers), "mean", f"− {base}"], rows)


def write_page() -> None:
    """The tables between the marks of arena.md, and the whole reports."""
    every = {name: results(*load(name)) for name in (*ARENAS, "alfworld", "real")}
    computed = every["cpu"]
    truth = {regime: line for name in KNOWN for regime, line in final(every[name]).items()}
    parts = {
        "alfworld": as_markdown([by_seed(every["alfworld"], "alfworld")], []),
        "speed": as_markdown([over_time(load("alfworld")[1])], []),
        "boxes": as_markdown([by_seed(every["real"], "sokoban")], []),
        **{name: as_markdown([matrix(every[name])], []) for name in ARENAS if name != "cpu"},
        "said": "\n".join(textwrap.fill(f"- {sentence}", 118, subsequent_indent="  ") for sentence in sentences(computed)) + "\n",
        "matrix": as_markdown([matrix(computed)], []),
        "sensitivity": as_markdown([sensitivity(computed)], []),
        "auto": as_markdown([choosing(truth)], []),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{part.strip()}\n\n{end}{rest.split(end)[1]}"
    write_text_atomically(PAGE, text)
    write_text_atomically(HERE / "cpu.html", page(computed))


if __name__ == "__main__":
    {"page": write_page, "auto": write_auto}[sys.argv[1]]()
