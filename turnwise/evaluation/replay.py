"""The same data, another credit: what would a different algorithm have done with this iteration?

The rollouts of an iteration are on the disk, so its credit can be computed again with any settings, without an engine, and two credits be
compared turn by turn. If the checkpoint before the iteration was also kept, the update itself is run again, from the same weights, on the
same tokens, with the same seed. With the run's settings it gives the run's numbers, exactly on a CPU; with others it shows how
differently the weights would have moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnwise import credit
from turnwise.config.references import is_reference
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, alike
from turnwise.recipe.names import STAGES, know
from turnwise.recipe.reading import parse_override
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.reading import stored_batch
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

OWN = "as trained"
SECTIONS = ("credit", "objective", "schedule", "learner")


@dataclass(frozen=True)
class Variant:
    """One way to give credit: the run's own config with other settings."""

    name: str
    config: Config


def replay(
    run_folder: str | Path,
    iteration: int | None = None,
    overrides: Sequence[str] = (),
    also: Sequence[str] = (),
    *,
    update: bool = False,
    top: int = 10,
    trust: bool = False,
) -> dict[str, Any]:
    """Credit of one iteration (None: the last that is kept) as trained, with `overrides`, and with each algorithm named in `also`; every
    other one compared with the first. With `update`, the update as well."""
    run = Run.open(run_folder)
    iteration = run.last_iteration("rollouts") if iteration is None else iteration
    batch = stored_batch(run, iteration)
    rollouts = batch.rollouts
    variants = _variants(run, overrides, also, update)
    trusted = variants[0].config
    if update or is_reference(trusted.credit.name):
        trusted.trusted(trust, run.folder)
    for variant in variants:
        know(variant.config, STAGES if update else ("credit",))
    batches = [credit.give(batch, variant.config.credit.name, **variant.config.credit.options) for variant in variants]
    credits = [assigned for each in batches if (assigned := credit.credit_of(each.rollouts)) is not None]
    by_turn = [assigned.by_turn(rollouts) for assigned in credits]
    records = run.trajectories(iteration)
    result: dict[str, Any] = {
        "run": str(run.folder),
        "iteration": iteration,
        "turns": len(rollouts),
        "credits": [{"name": v.name} | credit.sizes(assigned.values) for v, assigned in zip(variants, credits, strict=True)],
        "comparisons": [
            {"one": variants[0].name, "other": variant.name}
            | agreement(by_turn[0], other)
            | {"differ_most": biggest_differences(rollouts, records, by_turn[0], other, top)}
            for variant, other in zip(variants[1:], by_turn[1:], strict=True)
        ],
    }
    return result | (_updates(run, iteration, variants, batches) if update else {})


def _variants(run: Run, overrides: Sequence[str], also: Sequence[str], update: bool) -> list[Variant]:
    recipe = run.folder / CONFIG
    changes = dict(parse_override(text) for text in overrides)
    for key in changes:
        if key.split(".")[0] not in SECTIONS:
            raise TurnwiseError(f"{key}: a replay changes what follows the data: {', '.join(f'{name}.…' for name in SECTIONS)}")
        if not key.startswith("credit.") and not update:
            raise TurnwiseError(f"{key} changes the update and not the credit: give --update as well")
    variants = [Variant(OWN, Config.load(recipe))]
    if changes:
        variants.append(Variant(" ".join(overrides), Config.load(recipe, changes)))
    return variants + [Variant(f"credit.name={name}", Config.load(recipe, {"credit.name": name})) for name in also]


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


# -- the update ---------------------------------------------------------------------------------------------------------------------


def replayable(run: Run) -> list[int]:
    """The iterations whose update can be run again: tokens are kept, and so is the checkpoint before them."""
    from turnwise.learn.checkpoint import by_step

    steps = by_step(run.checkpoints)
    with_tokens = [n for n in run.iterations_of("rollouts") if (run.folder / "rollouts" / f"{n:06d}.tokens.npz").is_file()]
    return [n for n in with_tokens if n - 1 in steps]


def _updates(run: Run, iteration: int, variants: Sequence[Variant], batches: Sequence[Batch]) -> dict[str, Any]:
    if iteration not in (possible := replayable(run)):
        raise TurnwiseError(
            f"the update of iteration {iteration} cannot be run again: that needs its tokens and the checkpoint of "
            f"iteration {iteration - 1}. Possible in {run.folder}: {', '.join(map(str, possible)) or 'none'}. "
            "run.checkpoint_every=1 with a larger run.keep_checkpoints keeps more"
        )
    whole = stored_batch(run, iteration, tokens=True)
    moves = [
        _move(run, iteration, variant, replace(whole, rollouts=credited.rollouts))
        for variant, credited in zip(variants, batches, strict=True)
    ]
    logged = next((line for line in run.metrics() if line.get("iteration") == iteration), {})
    return {
        "updates": [{"name": variant.name} | move["metrics"] for variant, move in zip(variants, moves, strict=True)],
        "update_comparisons": [
            {
                "one": variants[0].name,
                "other": variant.name,
                "gradient_cosine": cosine(moves[0]["gradient"], move["gradient"]),
                "weights_cosine": cosine(moves[0]["delta"], move["delta"]),
            }
            for variant, move in zip(variants[1:], moves[1:], strict=True)
        ],
        "reproduces": reproduces(moves[0]["metrics"], logged),
    }


def _move(run: Run, iteration: int, variant: Variant, batch: Batch) -> dict[str, Any]:
    """One update from the checkpoint before the iteration: its metrics, its first gradient, and how the weights moved."""
    from turnwise.learn import checkpoint
    from turnwise.learn.packing import pack
    from turnwise.setup.build import build_policy, load_model

    learner = build_policy(variant.config, load_model(variant.config.trusted()))
    stored = checkpoint.load(checkpoint.by_step(run.checkpoints)[iteration - 1])
    learner.load_state(stored.tensors, stored.state["learner"])
    gradients: list[dict[str, Any]] = []

    def look(weights: Any) -> None:
        if not gradients:
            gradients.append({name: gradient.detach().cpu().clone() for name, gradient in weights.gradients().items()})

    learner.optimiser.look = look
    packed = pack(batch.trajectories, batch.rollouts)
    before, start = learner.logprobs(packed), _copy(learner.weights.tensors())
    config = variant.config
    metrics = learner.update(batch, derive(config.seed, "update", iteration), progress=(iteration - 1) / config.iterations)
    delta = {name: tensor.cpu() - start[name] for name, tensor in learner.weights.tensors().items()}
    gap = learner.logprobs(packed).astype(np.float64) - before
    numbers = {name: value for name, value in metrics.items() if not name.startswith("seconds")}
    moved = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in delta.values()))
    extra = {"kl_after": float(np.mean(np.expm1(gap) - gap)) if len(gap) else 0.0, "weights_moved": moved}
    return {"metrics": numbers | extra, "gradient": gradients[0] if gradients else {}, "delta": delta}


def _copy(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def cosine(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """The cosine of the angle between two sets of tensors as long vectors; None if one of them is 0."""
    shared = [name for name in one if name in other]
    dot = sum(float((one[name].double() * other[name].double()).sum()) for name in shared)
    sizes = [math.sqrt(sum(float(tensor.double().square().sum()) for tensor in each.values())) for each in (one, other)]
    return dot / (sizes[0] * sizes[1]) if min(sizes) > 0 else None


def reproduces(metrics: Mapping[str, float], logged: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the update as trained gave the numbers that the run logged: how many were compared, and the largest relative difference."""
    shared = [name for name in metrics if f"learner/{name}" in logged]
    gaps = {name: abs(metrics[name] - logged[f"learner/{name}"]) / max(abs(logged[f"learner/{name}"]), 1e-12) for name in shared}
    worst = max(gaps, key=lambda name: gaps[name], default="")
    return {"metrics": len(shared), "exact": bool(shared) and not any(gaps.values()), "largest_gap": gaps.get(worst, 0.0), "at": worst}
