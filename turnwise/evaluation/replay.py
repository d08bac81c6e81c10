"""The same data, another credit: what would a different algorithm have done with this iteration?

The rollouts of an iteration are on the disk, so its credit can be computed again with any settings, without an engine, and two credits be
compared turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise import credit
from turnwise.config.references import is_reference
from turnwise.data.rollouts import Floats, Rollouts, alike
from turnwise.recipe.names import know
from turnwise.recipe.reading import parse_override
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.reading import stored_batch
from turnwise.util.errors import TurnwiseError

OWN = "as trained"


def replay(
    run_folder: str | Path,
    iteration: int | None = None,
    overrides: Sequence[str] = (),
    also: Sequence[str] = (),
    *,
    top: int = 10,
    trust: bool = False,
) -> dict[str, Any]:
    """Credit of one iteration (None: the last that is kept) as trained, with `overrides`, and with each algorithm named in `also`; every
    other one compared with the first."""
    run = Run.open(run_folder)
    iteration = run.last_iteration("rollouts") if iteration is None else iteration
    batch = stored_batch(run, iteration)
    rollouts = batch.rollouts
    variants = _variants(run, overrides, also)
    own = variants[OWN]
    if is_reference(own.credit.name):
        own.trusted(trust, run.folder)
    for config in variants.values():
        know(config, ("credit",))
    batches = [credit.give(batch, config.credit.name, **config.credit.options) for config in variants.values()]
    credits = [assigned for each in batches if (assigned := credit.credit_of(each.rollouts)) is not None]
    by_turn = [assigned.by_turn(rollouts) for assigned in credits]
    records = run.trajectories(iteration)
    return {
        "run": str(run.folder),
        "iteration": iteration,
        "turns": len(rollouts),
        "credits": [{"name": name} | credit.sizes(assigned.values) for name, assigned in zip(variants, credits, strict=True)],
        "comparisons": [
            {"one": OWN, "other": name}
            | agreement(by_turn[0], other)
            | {"differ_most": biggest_differences(rollouts, records, by_turn[0], other, top)}
            for name, other in list(zip(variants, by_turn, strict=True))[1:]
        ],
    }


def _variants(run: Run, overrides: Sequence[str], also: Sequence[str]) -> dict[str, Config]:
    """The run's own config, and those with other settings, by what they are called."""
    recipe = run.folder / CONFIG
    changes = dict(parse_override(text) for text in overrides)
    for key in changes:
        if not key.startswith("credit."):
            raise TurnwiseError(f"{key}: a replay changes the credit of stored data, and only credit.… can be set")
    variants = {OWN: Config.load(recipe)}
    if changes:
        variants[" ".join(overrides)] = Config.load(recipe, changes)
    return variants | {f"credit.name={name}": Config.load(recipe, {"credit.name": name}) for name in also}


# -- how two credits of the same turns agree ---------------------------------------------------------------------------------------------


def agreement(one: Floats, other: Floats) -> dict[str, float | None]:
    """pearson, spearman: correlations over turns, None if a credit does not vary. Shares of turns: same_sign, where both are above 0,
    both below, or both 0; flipped, which one praises and the other blames; only_one, only_other, with credit from that one alone."""
    a, b = np.sign(one), np.sign(other)
    return {
        "pearson": correlation(one, other),
        "spearman": correlation(ranks(one), ranks(other)),
        "same_sign": float((a == b).mean()),
        "flipped": float((a * b < 0).mean()),
        "only_one": float(((a != 0) & (b == 0)).mean()),
        "only_other": float(((a == 0) & (b != 0)).mean()),
    }


def correlation(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation; None if one of the two is constant: the mean of equal numbers is off by a last digit, and that would
    correlate perfectly."""
    if alike(one) or alike(other):
        return None
    a, b = one - one.mean(), other - other.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-300 else None


def ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared_ranks: Floats = (ends - (counts + 1) / 2)[inverse.reshape(-1)]
    return shared_ranks


def biggest_differences(
    rollouts: Rollouts, records: Sequence[Mapping[str, Any]], one: Floats, other: Floats, top: int
) -> list[dict[str, Any]]:
    """The turns where two credits differ most, each credit divided by its mean absolute value, so that scales do not matter."""

    def scaled(values: Floats) -> Floats:
        return values / max(float(np.abs(values).mean()), 1e-300)

    gap = np.abs(scaled(one) - scaled(other))
    texts = {record["id"]: record for record in records}
    differences = []
    for row in np.argsort(-gap, kind="stable")[:top].tolist():
        if gap[row] == 0:
            break
        label, t = rollouts.trajectory_labels[rollouts.trajectory[row]].item(), int(rollouts.t[row])
        record = texts[label]
        differences.append(
            {
                "task": record["task"],
                "trajectory": label,
                "turn": t + 1,
                "action": record["turns"][t]["action"],
                "success": record["success"],
                "one": float(one[row]),
                "other": float(other[row]),
            }
        )
    return differences
