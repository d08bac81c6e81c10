"""What a method drops leaves the denominators: the gradient is that of the same batch without it, with KL and entropy terms too."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from gradient_cases import GradientOf, assert_same
from learn_cases import tiny, trajectories

from turnwise import credit
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.objectives import Loss
from turnwise.objectives.tokens import AGGREGATIONS

TERMS: dict[str, Any] = {"kl_coef": 0.1, "entropy_coef": 0.05}
STILL = OptimiserSettings(lr=0.0)


def gradient(batch: Batch, aggregation: str, **loss: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The gradient of one step with KL and entropy terms, and its metrics. The batch has the reference's log-probs."""
    settings = LearnerSettings(loss=Loss(**loss, **TERMS), aggregation=aggregation, optimiser=STILL, old_logprobs="learner")
    run = GradientOf(Learner(tiny(), settings))
    return run(batch), run.metrics


def silent(found: list[Trajectory], groups: set[int]) -> list[Trajectory]:
    """The attempts, those of some groups with equal returns."""
    return [one if one.group not in groups else replace(one, turns=[replace(turn, reward=0.0) for turn in one.turns]) for one in found]


def scored(found: list[Trajectory]) -> list[Trajectory]:
    """The same with scores and matches as UI-S1's plan notes them: the reward of a turn."""
    return [
        replace(one, turns=[replace(turn, notes={"score": turn.reward, "match": float(turn.reward > 0)}) for turn in one.turns])
        for one in found
    ]


def without(batch: Batch, kept: Any) -> Batch:
    """The batch of the trajectories that have a kept turn, with the advantages and reference log-probs that they had."""
    r = batch.rollouts
    numbers = [k for k in range(len(batch.trajectories)) if kept[list(batch.rows(k))].any()]
    small = Batch.of([batch.trajectories[k] for k in numbers])
    rows = np.concatenate([list(batch.rows(k)) for k in numbers])
    tokens = np.concatenate([np.arange(r.token_offsets[row], r.token_offsets[row + 1]) for row in rows])
    ref = np.asarray(batch.column("token.ref_logprob"))[tokens]
    return small.with_columns({"turn.advantage": np.asarray(batch.column("turn.advantage"))[rows], "token.ref_logprob": ref})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["loop", "ui_s1"])
def test_dropped_attempts_are_in_no_denominator_and_no_term(name: str, aggregation: str) -> None:
    batch = Batch.of(scored(silent(trajectories(3, groups=4), {0, 1, 3})))  # three of four groups say nothing
    batch = batch.with_columns({"token.ref_logprob": np.linspace(-3.0, -0.5, int(batch.rollouts.token_offsets[-1]))})
    given = credit.give(batch, name)
    kept = np.asarray(given.column("turn.mask"))
    assert kept[batch.rollouts.group == 2].all() and not kept[batch.rollouts.group != 2].any()
    found, _ = gradient(given, aggregation)
    assert_same(found, gradient(without(given, kept), aggregation)[0])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("over", ["turn", "trajectory"])
def test_rejected_spans_are_in_no_denominator_and_no_term(over: str, aggregation: str) -> None:
    batch = credit.give(Batch.of(trajectories(5, groups=4)), "gigpo")
    learner = Learner(tiny(), LearnerSettings(optimiser=STILL))
    own = learner.annotate(batch).column("token.old_logprob")
    r = batch.rollouts
    far = np.isin(r.trajectory, [1, 4, 6]) if over == "trajectory" else np.isin(np.arange(len(r)), [1, 4, 6, 7, 11])
    turns = []
    for k, trajectory in enumerate(batch.trajectories):
        rows = list(batch.rows(k))
        said = [own[r.token_offsets[row] : r.token_offsets[row + 1]] - (2.0 if far[row] else 0.01) for row in rows]
        turns.append([replace(turn, logprobs=logprobs.tolist()) for turn, logprobs in zip(trajectory.turns, said, strict=True)])
    batch = Batch.of([replace(one, turns=new) for one, new in zip(batch.trajectories, turns, strict=True)]).with_columns(
        {"turn.advantage": batch.column("turn.advantage"), "token.ref_logprob": np.linspace(-3.0, -0.5, int(r.token_offsets[-1]))}
    )
    options = {"importance": "reject", "importance_options": {"over": over, "ratio_high": 1.5}}
    found, metrics = gradient(batch, aggregation, **options)
    masked, _ = gradient(batch.with_columns({"turn.mask": ~far}), aggregation)
    assert_same(found, masked)
    share = np.diff(r.token_offsets)[far].sum() / r.token_offsets[-1]
    assert metrics["importance_rejected"] == pytest.approx(share, rel=1e-5) and metrics["importance"] == pytest.approx(1.0)
    if over == "trajectory":
        assert_same(found, gradient(without(batch, ~far), aggregation)[0])


def test_a_step_of_which_everything_is_rejected_is_not_taken() -> None:
    batch = credit.give(Batch.of(trajectories(5)), "gigpo")
    settings = LearnerSettings(loss=Loss(importance="reject", importance_options={"k3_high": 0.0}), optimiser=STILL)
    metrics = Learner(tiny(), settings).update(batch)
    assert metrics["empty_steps"] == 1 and metrics["steps"] == 0


def test_every_method_that_masks_says_whether_what_it_drops_leaves_the_denominators() -> None:
    section = (
        (ROOT / "docs" / "methods" / "settings.md").read_text().split("## What is dropped, and what is divided by")[1].split("\n## ")[0]
    )
    listed = re.findall(r"^\| \[`(\w+)`\]\(\w+\.md\) \|.*\| (?:yes|no)\b", section, re.M)
    masking = {entry.name for entry in credit.algorithms if '.mask": ' in inspect.getsource(entry.function)}
    assert masking and masking <= set(listed)
    assert [name for name in listed if "denominator" not in (ROOT / "docs" / "methods" / f"{name}.md").read_text()] == []
