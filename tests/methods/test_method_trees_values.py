"""Search and trees, first half: the value of a state from fresh attempts (VinePPO), and candidates that an oracle scores (VPR)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from branch_env import Kept
from collect_cases import WordEngine, gathered, numbered, policy
from conftest import ROOT
from method_cases import collected, line_of, make, trained
from toy_env import Corridor

import turnwise as tw
from turnwise.collect.collector import Collector
from turnwise.collect.source import LocalSource
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.envs.pool import Pool
from turnwise.methods.planning import TaskSlots
from turnwise.methods.vpr import Advised
from turnwise.runs.reading import stored_batch


def attempts(rewards: list[list[float]]) -> list[Trajectory]:
    """Trajectories with these rewards, one list each."""
    return [Trajectory(0, k, turns=[Turn("s", reward) for reward in row]) for k, row in enumerate(rewards)]


# -- VinePPO ----------------------------------------------------------------------------------------------------------------------


def test_states_of_unknown_value_take_what_follows() -> None:
    """What a turn adds to known values is compared with the authors' numbers: tests/credit/test_authors_credit.py."""
    r = tw.Rollouts.from_columns(group=[0] * 5, trajectory=[0, 0, 0, 1, 1], t=[0, 1, 2, 0, 1], reward=[0, 1, 2, 0, 5.0], anchor=[0] * 5)
    nan = np.nan
    found = tw.credit.compute("vineppo", r.with_columns({"turn.mc_value": [1.0, nan, nan, nan, nan]}))
    np.testing.assert_allclose(found, [2.0, 0, 0, 0, 0])  # what followed: 3
    assert not tw.credit.compute("vineppo", r.with_columns({"turn.mc_value": [nan] * 5})).any()


def test_vineppo_values_every_state_by_fresh_attempts_from_there_and_learns_from_the_others_alone() -> None:
    seen: list[Start] = []
    made: list[Trajectory] = []
    plan = make("vineppo", branches=3, share="none")
    with Pool(Kept, 4) as pool:
        collector = Collector(pool, policy(WordEngine(bias=30)), max_turns=6, snapshots=True)

        def run(starts: Any) -> list[Trajectory]:
            found = collector.run(starts)
            seen.extend(starts)
            made.extend(found)
            return found

        found = gathered(plan, TaskSlots(numbered(6), 1, 2), 2, run)
    roots = found.trajectories
    assert len(roots) == 4 and all(root.parent is None for root in roots)
    assert len(seen) == 4 + 3 * sum(len(root.turns) for root in roots)
    for root in roots:
        for t, turn in enumerate(root.turns):
            returns = [sum(x.reward for x in b.turns[t:]) for b in made if b.parent == root.id and b.branch_t == t]
            assert len(returns) == 3 and turn.notes["mc_value"] == pytest.approx(np.mean(returns))


def test_states_that_share_an_estimate_are_valued_once() -> None:
    counts = {}
    for share in ("none", "prompt", "anchor"):
        found = collected(make("vineppo", branches=2, share=share))
        counts[share] = found.counts
        by: dict[Any, set[float]] = {}
        for root in found.trajectories:
            for t, turn in enumerate(root.turns):
                key = {"none": (root.id, t), "prompt": (root.group, t, tuple(turn.prompt_ids)), "anchor": (root.group, turn.anchor)}[share]
                by.setdefault(key, set()).add(turn.notes["mc_value"])
        assert all(len(values) == 1 for values in by.values()) and len(by) == found.counts["valued_states"]
    assert counts["none"]["shared_states"] == 0 < counts["prompt"]["shared_states"] < counts["anchor"]["shared_states"]


def test_fresh_attempts_can_be_learned_from_and_states_beyond_the_last_one_are_not_valued() -> None:
    found = collected(make("vineppo", branches=1, last=1, learn_branches=True))
    batch = Batch.of(found.trajectories)
    branches = [k for k, trajectory in enumerate(batch.trajectories) if trajectory.parent is not None]
    assert branches and all(batch.trajectories[k].branch_t <= 1 for k in branches)
    value = batch.column("turn.mc_value")
    credit = tw.credit.compute("vineppo", batch.rollouts)
    for k in branches:
        rows, t = np.asarray(batch.rows(k)), batch.trajectories[k].branch_t
        if len(rows) > t:
            rest = sum(turn.reward for turn in batch.trajectories[k].turns[t:])
            assert np.isnan(value[rows[t + 1 :]]).all() and credit[rows[t]] == pytest.approx(rest - value[rows[t]], abs=1e-6)
    roots = [k for k in range(len(batch.trajectories)) if k not in branches]
    assert all(np.isnan(value[np.asarray(batch.rows(k))[2:]]).all() for k in roots)


def test_a_run_with_vineppo_makes_branches_and_trains_on_their_values(tmp_path: Path) -> None:
    run = trained(tmp_path, "vineppo", plan={"name": "vineppo", "branches": 2})
    batch, line = stored_batch(run, 1), line_of(run)
    assert line["collect/branches"] == 2 * line["collect/valued_states"] > 0 and line["collect/lost_branches"] == 0
    assert len(batch.trajectories) == 4 and np.isfinite(batch.column("turn.mc_value")).all()
    assert batch.column("turn.advantage").any() and line["learner/grad_norm"] > 0


# -- VPR --------------------------------------------------------------------------------------------------------------------------


def test_candidates_are_compared_within_their_state_and_states_of_equal_scores_are_masked() -> None:
    r = tw.Rollouts.from_columns(group=[0] * 7, trajectory=[0, 0, 1, 2, 3, 4, 5], t=[0, 1, 0, 0, 0, 0, 0], reward=[0.0] * 7, anchor=[0] * 7)
    r = r.with_columns({"turn.choice": [0, 1, 0, 0, 1, 1, np.nan], "turn.score": [1, 0, 0, 0, 0, 0, np.nan]})
    found = tw.credit.assign("vpr", r)
    np.testing.assert_array_equal(found.columns["turn.mask"], [True, False, True, True, False, False, False])
    relative = np.array([2 / 3, 0, -1 / 3, -1 / 3, 0, 0, 0])
    np.testing.assert_allclose(tw.credit.compute("vpr", r, whiten=False), relative, rtol=1e-6)


def test_the_best_candidate_is_played_and_the_others_stay_one_turn_long() -> None:
    def rightwards(turn: Turn, trajectory: Trajectory) -> float:
        return float(turn.action == "right")

    plan = make("vpr", candidates=5, oracle="env.expert_action")
    plan.oracle = rightwards  # type: ignore[attr-defined]
    found = collected(plan)
    batch = Batch.of(found.trajectories)
    choice, score = batch.column("turn.choice"), batch.column("turn.score")
    lines = [k for k, trajectory in enumerate(batch.trajectories) if trajectory.id in range(4) or len(trajectory.turns) > 1]
    assert not batch.has("trajectory.parent") and len(lines) >= 4
    assert found.counts["candidates"] == len(batch) and found.counts["committed_score"] > 0.8
    for number in np.unique(choice):
        rows = np.flatnonzero(choice == number)
        assert len(rows) == 5 and len(set(batch.rollouts.anchor[rows].tolist())) == 1  # one state
        prompts = {tuple(batch.trajectories[k].turns[row - batch.rows(k)[0]].prompt_ids) for k, row in _places(batch, rows)}
        assert len(prompts) == 1
    committed = [row for k, trajectory in enumerate(batch.trajectories) if len(trajectory.turns) > 1 for row in batch.rows(k)]
    assert all(score[row] == score[choice == choice[row]].max() for row in committed)


def _places(batch: Batch, rows: Any) -> list[tuple[int, int]]:
    return [(int(np.searchsorted(batch.first_row, row, "right")) - 1, int(row)) for row in rows]


def test_an_oracle_of_the_users_own_file_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def oracle(turn, trajectory):\n    return -abs(len(turn.response_ids) - 1)\n")
    plan = make("vpr", candidates=2, oracle=f"{tmp_path}/mine.py:oracle")
    found = collected(plan, groups=1, size=1)
    assert {turn.notes["score"] for trajectory in found.trajectories for turn in trajectory.turns} == {-1.0}


def test_the_experts_advice_stands_next_to_every_transition() -> None:
    with Pool(Advised(lambda: tw.make("sokoban", size=5)), 1) as pool:
        [task] = tw.tasks("sokoban", n=1, size=5)
        seen = pool.reset(0, task, 0)
        for _ in range(20):
            state = pool.snapshot(0).state
            assert state is not None
            advice = pool.step(0, "nowhere").transition
            assert advice is not None and advice.info["expert"]["left"] == advice.info["expert"]["then"] > 0
            pool.restore(0, task, 0, state)
            seen = pool.step(0, advice.info["expert"]["action"])
            assert seen.transition is not None and seen.transition.info["expert"]["then"] == advice.info["expert"]["left"] - 1
            if seen.over:
                break
    assert seen.transition is not None and seen.transition.success


def test_a_run_with_vpr_commits_what_the_expert_would_do(tmp_path: Path) -> None:
    run = trained(tmp_path, "vpr", plan={"name": "vpr", "candidates": 4})
    batch, line = stored_batch(run, 1), line_of(run)
    score, mask = batch.column("turn.score"), batch.column("turn.mask")
    assert set(score.tolist()) == {0.0, 1.0} and 0 < mask.sum() < len(mask)
    assert line["collect/committed_score"] > score.mean() and line["collect/lost_branches"] == 0
    assert (np.sign(batch.column("turn.advantage")[mask]) == np.where(score[mask] == 1, 1, -1)).all()


def test_vpr_needs_an_expert_or_an_oracle(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match=r"plan.name=vpr needs env\.expert_action: .* has no expert_action\(\)"):
        trained(tmp_path, "vpr", **{"plan": {"name": "vpr"}, "env.name": f"{ROOT}/tests/support/toy_env.py:Corridor", "env.options": {}})


def test_a_plan_that_branches_by_snapshots_where_there_are_any_runs_where_there_are_none() -> None:
    engine = WordEngine(bias=30)
    engine.version = 0  # type: ignore[attr-defined]
    with Pool(Corridor, 4) as pool:
        source = LocalSource(
            TaskSlots(numbered(6), 1, 2),
            2,
            lambda: Collector(pool, policy(engine), max_turns=6, snapshots=True),
            lambda: engine,  # type: ignore[arg-type,return-value]
        )
        batch = source.collect(make("vpr", candidates=2))  # type: ignore[arg-type]
    assert batch.counts["lost_branches"] == 0 < batch.counts["branches"]
