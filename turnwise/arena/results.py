"""What the cards of an arena say: every number of its report, as plain data. The report is made from this, and from nothing else.

A score is the success of a run's last evaluation within the budget of attempts. Only seeds count with which every method that takes part
in an environment was run; the others, and cells without a card, are listed. Runs that crashed count with the last evaluation they had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.arena import scores
from turnwise.arena.card import COSTS, Card, headline, points
from turnwise.arena.plan import Arena, Cell
from turnwise.arena.run import choose
from turnwise.util.errors import TurnwiseError
from turnwise.util.statistics import holm, mean_and_error, t_interval

BASELINES = ("grpo", "gigpo")  # differences are shown to these, where they take part
THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(20))
LEVEL = 0.05


def results(arena: Arena, cards: Mapping[str, Card]) -> dict[str, Any]:
    """All numbers of the report."""
    chosen = choose(arena, cards)
    cells = list(arena.final_cells(chosen))
    if strange := [name for name, card in cards.items() if card["about"].get("arena_hash") != arena.hash]:
        raise TurnwiseError(f"{len(strange)} cards, {strange[0]} among them, were made with another arena file: take them out of cards/")
    lines = {cell: headline(cards[cell.name], arena.attempts(cell.environment)) for cell in cells if cell.name in cards}
    if not lines:
        raise TurnwiseError("there is no card of a final run yet: turnwise arena run makes them")
    grid = Grid(arena, lines)
    methods = {name: grid.of(name, grid.common) for name in grid.complete}
    return {
        "arena": arena.name,
        "hash": arena.hash,
        "seeds": arena.settings.seeds,
        "complete_seeds": grid.common,
        "environments": list(arena.settings.environments),
        "missing": [cell.name for cell in cells if cell.name not in cards],
        "partial": sorted(set(arena.methods) - set(grid.complete)),
        "controls": {name: arena.is_control(name) for name in arena.methods},
        "overall": overall(methods),
        "differences": {base: differences(grid, base) for base in BASELINES if base in arena.settings.methods},
        "placebos": placebos(arena, grid),
        "by_environment": {name: by_environment(arena, grid, name) for name in arena.settings.environments},
        "predictions": predictions(arena, grid),
        "curves": curves(arena, cards, lines),
        "costs": costs(lines),
        "ends": ends(lines),
        "tuning": tuning(arena, cards, chosen),
        "split_half": scores.split_half(methods) if len(methods) > 2 else None,
    }


class Grid:
    """Scores by environment, method and seed. `complete` methods take part in all environments; `common` are the seeds that all of their
    runs have."""

    def __init__(self, arena: Arena, lines: Mapping[Cell, Mapping[str, Any]]):
        self.arena = arena
        self.score = {(cell.environment, cell.method, cell.seed): float(line["success"]) for cell, line in lines.items()}
        self.environments = list(arena.settings.environments)
        self.complete = [
            name
            for name in arena.methods
            if all(arena.takes_part(name, environment) and self.seeds(environment, name) for environment in self.environments)
        ]
        self.common = self.shared(self.complete)

    def seeds(self, environment: str, method: str) -> list[int]:
        return [seed for seed in self.arena.settings.seeds if (environment, method, seed) in self.score]

    def shared(self, methods: Iterable[str], environments: Sequence[str] | None = None) -> list[int]:
        """The seeds that these methods have in all of these environments."""
        sets = [set(self.seeds(environment, method)) for method in methods for environment in environments or self.environments]
        return [seed for seed in self.arena.settings.seeds if sets and all(seed in each for each in sets)]

    def of(self, method: str, seeds: Sequence[int], environments: Sequence[str] | None = None) -> NDArray[np.float64]:
        """float64[environments, seeds]"""
        return np.array([[self.score[environment, method, seed] for seed in seeds] for environment in environments or self.environments])


def overall(methods: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Each method over all environments, and its rank among the others."""
    if not methods or not next(iter(methods.values())).shape[1]:
        return {}
    places = scores.rank_intervals(methods)
    return {
        name: {
            "mean": scores.overall_mean(array),
            "mean_interval": scores.mean_interval(array),
            "iqm": scores.overall_iqm(array),
            "iqm_interval": scores.iqm_interval(array),
            "rank": places[name][0],
            "rank_interval": places[name][1:],
            "profile": scores.profile(array, THRESHOLDS),
        }
        for name, array in methods.items()
    }


def differences(grid: Grid, base: str) -> dict[str, Any]:
    """Every other method minus a baseline, over the environments and seeds that both have; Holm's correction over all of them."""
    found: dict[str, Any] = {}
    for name in grid.arena.methods:
        if name == base or name not in grid.complete or base not in grid.complete:
            continue
        seeds = grid.shared((name, base))
        if seeds:
            one, other = grid.of(name, seeds), grid.of(base, seeds)
            found[name] = asdict(scores.difference(one, other)) | {
                "seeds": len(seeds),
                "improvement": scores.improvement(one, other),
                "improvement_interval": scores.improvement_interval(one, other),
            }
    return _with_holm(found)


def _with_holm(found: dict[str, Any]) -> dict[str, Any]:
    tested = [line for line in found.values() if line["p"] is not None]
    for line, p in zip(tested, holm([line["p"] for line in tested]), strict=True):
        line["holm"] = p
    return found


def placebos(arena: Arena, grid: Grid) -> list[dict[str, Any]]:
    """Each control against its method. `wins`: it is at least as good; `told_apart`: it is surely worse."""
    base = arena.settings.controls
    if base is None or base not in grid.complete:
        return []
    lines = []
    for name, line in differences(grid, base).items():
        if arena.is_control(name):
            told_apart = line["difference"] < 0 and line.get("holm") is not None and line["holm"] < LEVEL
            lines.append({"control": name, "method": base, "wins": line["difference"] >= 0, "told_apart": told_apart} | line)
    return lines


def by_environment(arena: Arena, grid: Grid, environment: str) -> dict[str, Any]:
    """Each method on one environment, with all seeds that it has; differences to the baselines with Holm's correction."""
    lines: dict[str, Any] = {}
    for name in arena.methods:
        if seeds := grid.seeds(environment, name):
            values = grid.of(name, seeds, [environment])[0]
            mean, error = mean_and_error(values.tolist())
            lines[name] = {
                "mean": mean,
                "error": error,
                "interval": t_interval(values),
                "scores": dict(zip(seeds, values.tolist(), strict=True)),
            }
    for base in BASELINES:
        found = {}
        for name in lines:
            seeds = grid.shared((name, base), [environment]) if base in lines and name != base else []
            if seeds:
                found[name] = asdict(scores.difference(grid.of(name, seeds, [environment]), grid.of(base, seeds, [environment])))
        for name, line in _with_holm(found).items():
            lines[name][f"to_{base}"] = line
    return lines


def predictions(arena: Arena, grid: Grid) -> list[dict[str, Any]]:
    """What was predicted to win on each environment, what did, and where the prediction stands."""
    lines = []
    for environment, prediction in arena.settings.predictions.items():
        means = {
            name: math.fsum(grid.of(name, seeds, [environment])[0]) / len(seeds)
            for name in arena.methods
            if (seeds := grid.seeds(environment, name))
        }
        if not means:
            continue
        highest, predicted = max(means.values()), means.get(prediction.method)
        best = [name for name, mean in means.items() if mean == highest]
        place = None if predicted is None else 1 + sum(mean > predicted for mean in means.values())
        facts = {"environment": environment, "predicted": prediction.method, "why": prediction.why}
        lines.append(facts | {"best": best, "place": place, "of": len(means)})
    return lines


def curves(arena: Arena, cards: Mapping[str, Card], lines: Mapping[Cell, Any]) -> list[dict[str, Any]]:
    """The mean curve of each method and environment, by attempts and by sampled tokens, with a fitted ceiling and speed."""
    result = []
    for environment in arena.settings.environments:
        for method in arena.methods:
            runs = [points(cards[cell.name]) for cell in lines if (cell.environment, cell.method) == (environment, method)]
            length = min(map(len, runs), default=0)
            if not length:
                continue
            mean = {
                name: [math.fsum(run[i][name] for run in runs) / len(runs) for i in range(length)]
                for name in ("success", "attempts", "tokens_sampled")
            }
            fits = {by: scores.fit_sigmoid(mean[by], mean["success"]) for by in ("attempts", "tokens_sampled")}
            result.append(
                {"environment": environment, "method": method, "runs": len(runs)}
                | mean
                | {f"fit_{by}": None if fit is None else asdict(fit) for by, fit in fits.items()}
            )
    return result


def costs(lines: Mapping[Cell, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What a run of each method took within the budget, mean over environments and seeds."""
    result = {}
    for method in dict.fromkeys(cell.method for cell in lines):
        of_method = [line for cell, line in lines.items() if cell.method == method]
        result[method] = {name: math.fsum(line.get(name, 0.0) for line in of_method) / len(of_method) for name in COSTS}
    return result


def ends(lines: Mapping[Cell, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How the runs of each method ended: crashes and timeouts, collapses, and attempts that were left out."""
    result = {}
    for method in dict.fromkeys(cell.method for cell in lines):
        of_method = [line for cell, line in lines.items() if cell.method == method]
        result[method] = {
            "runs": len(of_method),
            "not_finished": sum(line["ended"] != "finished" for line in of_method),
            "collapsed": sum(bool(line.get("collapsed")) for line in of_method),
            "left_out": math.fsum(line.get("left_out", 0.0) for line in of_method),
        }
    return result


def tuning(arena: Arena, cards: Mapping[str, Card], chosen: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """How sensitive each method is: the mean score of every setting that it tried, not only of the chosen one."""
    tried: dict[tuple[str, str, int], list[float]] = {}
    for cell in arena.tuning_cells():
        if cell.name in cards:
            line = headline(cards[cell.name], arena.attempts(cell.environment))
            tried.setdefault((cell.environment, cell.method, cell.trial), []).append(float(line["success"]))
    return [
        {
            "environment": environment,
            "method": method,
            "settings": arena.trials(method)[trial],
            "mean": math.fsum(values) / len(values),
            "runs": len(values),
            "chosen": chosen.get((environment, method)) == trial,
        }
        for (environment, method, trial), values in tried.items()
    ]
