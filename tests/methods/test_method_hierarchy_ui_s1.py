"""UI-S1: credit and patched episodes against the slow reference, and a small run along an expert's trajectories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_cases import numbered
from information_cases import rollouts, start
from order_runs import gathers
from references import ui_s1

import turnwise as tw
from turnwise import Task, Trajectory, Turn
from turnwise.data.attempts import Start
from turnwise.methods.planning import Places
from turnwise.methods.registry import plans
from turnwise.methods.ui_s1 import score
from turnwise.runs.reading import stored_batch

LENGTH = 5


def scored(seed: int, constant: bool = False, **shape: int) -> tw.Rollouts:
    r, rng = rollouts(seed, **shape), np.random.default_rng(seed)
    match = (rng.random(len(r)) < 0.6).astype(float)
    return r.with_columns({"turn.score": np.full(len(r), 0.1) if constant else rng.random(len(r)), "turn.match": match})


CASES = [*(scored(seed) for seed in range(5)), scored(6, constant=True), scored(7, groups=1, size=1), scored(8, turns=1)]


@pytest.mark.parametrize("norm", ["std", "none"])
@pytest.mark.parametrize("r", CASES)
def test_credit_is_that_of_the_definition(r: tw.Rollouts, norm: str) -> None:
    scores, matched = r.column("turn.score"), r.column("turn.match") > 0
    found = tw.credit.assign("ui_s1", r, least=0.0, norm=norm, episode_weight=0.7, step_weight=1.3)
    later = ui_s1.step_returns(scores, matched, r.trajectory)
    expected = ui_s1.advantages(scores, later, r.group, r.t, norm == "std", 0.7, 1.3)
    alone = np.bincount(r.group)[r.group] == 1  # the authors' code gives the only turn of a group its own score
    np.testing.assert_allclose(found.values, np.where(alone, 0.0, expected), atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(found.columns["turn.later_score"], later, atol=1e-9)
    for least in (0.05, 0.3):
        mask = tw.credit.assign("ui_s1", r, least=least).columns["turn.mask"]
        assert mask.tolist() == ui_s1.keep(later, r.group, r.t, least).tolist()


def test_eight_equal_attempts_are_filtered_however_much_the_turns_of_an_attempt_differ() -> None:
    n, size = 5, 8
    labels = {"group": [0] * n * size, "trajectory": np.repeat(np.arange(size), n), "t": np.tile(np.arange(n), size)}
    r = tw.Rollouts.from_columns(**labels, reward=[1.0] * n * size, anchor=[0] * n * size)
    r = r.with_columns({"turn.score": np.ones(len(r)), "turn.match": np.ones(len(r))})
    assert np.std(tw.credit.assign("ui_s1", r).columns["turn.later_score"], ddof=1) > 0.3
    assert not tw.credit.assign("ui_s1", r).columns["turn.mask"].any()


def test_turns_without_a_score_are_left_out() -> None:
    r = scored(1)
    some = np.asarray(r.column("turn.score")).copy()
    some[3] = np.nan
    found = tw.credit.assign("ui_s1", r.with_columns({"turn.score": some}), least=0.0)
    assert found.values[3] == 0 and not found.columns["turn.mask"][3] and found.columns["turn.mask"].sum() == len(r) - 1


def test_a_turn_is_scored_by_format_kind_and_exact_action() -> None:
    expert = Turn("s", action="go to Fridge 1")
    for action, valid, exact, kind in (
        ("go to  fridge 1", True, True, True),
        ("go to fridge 2", True, False, True),
        ("open fridge 1", True, False, False),
        ("go to fridge 1", False, False, False),
    ):
        assert score(Turn("s", action=action, valid=valid), expert) == pytest.approx(ui_s1.score(valid, exact, kind, valid))


def expert(tasks: list[Task]) -> list[Trajectory]:
    turns = [Turn(f"{t}", action=f"do {t}", response=f"expert {t}") for t in range(LENGTH)]
    return [Trajectory(0, "expert", task.id, turns, success=True, seed=7) for task in tasks]


@pytest.mark.parametrize("patches", [0, 1, 2, -1])
def test_wrong_actions_are_replaced_by_the_experts_until_there_were_too_many(patches: int) -> None:
    rng = np.random.default_rng(3)
    plan, places = plans["ui_s1"].make({"patches": patches}, "plan"), Places(numbered(1), 0, 1, expert=expert)
    for _ in range(12):
        matches = (rng.random(LENGTH) < 0.5).tolist()

        def play(begin: Start, matches: list[bool] = matches) -> Trajectory:
            assert begin.branch is not None and begin.env_seed == 7 and begin.max_turns == LENGTH
            before = [replace(turn) for turn in begin.branch.trajectory.turns[: begin.branch.t]]
            assert all(turn.action == f"do {t}" for t, turn in enumerate(before))  # always where the expert was
            assert all((turn.response == f"expert {t}") != matches[t] for t, turn in enumerate(before))
            new = [Turn(f"{t}", action=f"do {t if matches[t] else 'else'}") for t in range(len(before), LENGTH)]
            return Trajectory(begin.group, begin.number, begin.task.id, before + new, seed=7)

        [one] = gathers(plan, places, 1, play)[0].trajectories
        played, patched = ui_s1.episode(matches, patches)
        assert len(one.turns) == played and [turn.notes["patched"] > 0 for turn in one.turns] == patched
        assert [turn.notes["match"] > 0 for turn in one.turns] == matches[:played]
        assert all((turn.action == f"do {t}") == matches[t] for t, turn in enumerate(one.turns))  # the policy's own
        assert one.success == all(matches) and one.parent is None and one.reward == sum(t.notes["score"] for t in one.turns)


def test_tasks_without_an_expert_and_lost_attempts_are_left_out() -> None:
    plan = plans["ui_s1"].make({}, "plan")
    none = Places(numbered(2), 0, 2, expert=lambda tasks: [Trajectory(0, 0, task.id) for task in tasks])
    rounds: Any = plan.gather(none, 1)
    with pytest.raises(StopIteration) as end:
        next(rounds)
    assert end.value.value.trajectories == [] and end.value.value.counts["without_expert"] == 2
    rounds = plan.gather(Places(numbered(2), 0, 2, expert=expert), 1)
    next(rounds)
    with pytest.raises(StopIteration) as end:
        rounds.send([])
    assert end.value.value.trajectories == []


def test_a_run_learns_along_the_experts_trajectories(tmp_path: Path) -> None:
    run = start(tmp_path, **{"method.name": "ui_s1", "method.least": 0.0, "env.max_turns": 6})
    batch = stored_batch(run, 1)
    [line] = [line for line in run.metrics() if line.get("iteration") == 1]
    patched = np.asarray(batch.column("turn.patched"))
    assert patched.sum() == line["collect/patched"] > 0 and line["collect/faults"] == 0 and line.get("collect/lost_branches", 0) == 0
    wrong, last = np.asarray(batch.column("turn.match")) == 0, {batch.rows(k)[-1] for k in range(len(batch.trajectories))}
    goes_on = [patched[row] > 0 for row in np.flatnonzero(wrong) if row not in last]
    assert goes_on and all(goes_on)  # an attempt goes on behind a wrong action only where it was patched
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("ui_s1", batch.rollouts, least=0.0), atol=1e-5)
