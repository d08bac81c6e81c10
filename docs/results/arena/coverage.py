"""How often the report's 95 % intervals hold the truth, in simulated arenas with the spreads of the real one.

Scores of a method on a regime are normal around its mean in cpu.toml's final runs, cut to [0, 1]; a seed gives the same to all methods, and
something of its own to each, both with the spreads of those runs. The truth is what many thousand seeds give.

python docs/results/arena/coverage.py > docs/results/arena/coverage.json
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from tables import load

from turnwise.arena import scores
from turnwise.arena.results import Grid, headline
from turnwise.arena.run import choose

METHODS = ("graph_gpo", "every-visit", "pooled_td", "others-alone", "gigpo-once", "gigpo", "hgpo", "grpo", "rloo", "ppo")
SEEDS = (3, 5, 8)
TRIALS = 400
MANY = 20_000


def main() -> None:
    arena, cards = load()
    cells = [cell for cell in arena.final_cells(choose(arena, cards)) if cell.method in METHODS]
    grid = Grid(arena, {cell: headline(cards[cell.name], arena.attempts(cell.environment)) for cell in cells})
    real = np.stack([grid.of(method, arena.settings.seeds) for method in METHODS])  # [methods, regimes, seeds]
    truth = draw(real, MANY, np.random.default_rng(0))
    places = scores.ranks(truth.mean(axis=(1, 2)))
    base = METHODS.index("gigpo")
    chances = [better(one, truth[base]) for one in truth]
    rows = {}
    for n in SEEDS:
        held: dict[str, list[bool]] = {}
        for trial in range(TRIALS):
            drawn = draw(real, n, np.random.default_rng([n, trial]))
            ranks = scores.rank_intervals(dict(zip(METHODS, drawn, strict=True)), seed=trial)
            for i, name in enumerate(METHODS):
                note(held, "mean", scores.mean_interval(drawn[i], trial), truth[i].mean())
                note(held, "interquartile mean", scores.iqm_interval(drawn[i], trial), scores.overall_iqm(truth[i]))
                note(held, "rank", ranks[name][1:], places[i])
                if i != base:
                    note(held, "difference", scores.difference(drawn[i], drawn[base]).interval, (truth[i] - truth[base]).mean())
                    note(held, "probability of improvement", scores.improvement_interval(drawn[i], drawn[base], trial), chances[i])
        rows[n] = {name: round(float(np.mean(found)), 3) for name, found in held.items()}
    print(json.dumps({"methods": METHODS, "trials": TRIALS, "coverage": rows}, indent=1))


def draw(real: NDArray[np.float64], n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Scores of `n` new seeds, float64[methods, regimes, n]."""
    mean = real.mean(axis=2, keepdims=True)
    shared = (real - mean).mean(axis=0)  # what a seed gives to all methods
    own = (real - mean - shared).std(axis=2, ddof=1, keepdims=True)
    common = rng.standard_normal((1, real.shape[1], n)) * shared.std(axis=1, ddof=1)[None, :, None]
    result: NDArray[np.float64] = np.clip(mean + common + rng.standard_normal((*real.shape[:2], n)) * own, 0.0, 1.0)
    return result


def better(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The probability that a run of the one beats another run of the other, by pairs of different seeds."""
    pairs = [(one, np.roll(other, step, axis=1)) for step in range(1, 50)]
    return float(np.mean([(mine > theirs).mean() + 0.5 * (mine == theirs).mean() for mine, theirs in pairs]))


def note(held: dict[str, list[bool]], name: str, interval: tuple[float, float] | None, truth: float) -> None:
    if interval is not None:
        held.setdefault(name, []).append(interval[0] - 1e-12 <= truth <= interval[1] + 1e-12)


if __name__ == "__main__":
    main()
