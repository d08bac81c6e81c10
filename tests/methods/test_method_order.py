"""Order and curriculum: SeeUPO's reverse updates, ScalingInter's growing limit, TCOD's growing distillation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collect_cases import numbered
from method_cases import attempt, batch_of, failed_expert, gathers, make, plan_state, resumes_alike, rollouts, train
from references import seeupo

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.methods.planning import TaskSlots
from turnwise.methods.registry import schedules
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

# -- SeeUPO -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{}, {"groups": 1, "size": 1}, {"groups": 1, "size": 2}, {"turns": 1}])
def test_advantages_are_standardised_over_turns_of_the_same_number_and_bounded(shape: dict[str, int]) -> None:
    for seed in range(3):
        r = rollouts(seed, **shape)
        found = tw.credit.compute("seeupo", r)
        returns = np.bincount(r.trajectory, r.reward)[r.trajectory]
        for t in range(int(r.t.max()) + 1):
            rows = np.flatnonzero(r.t == t)
            assert found[rows] == pytest.approx(seeupo.advantages(returns[rows].tolist(), r.group[rows].tolist()), abs=1e-6)
    many = tw.Rollouts.from_columns(group=[0] * 100, trajectory=range(100), t=[0] * 100, reward=[1.0] + [0.0] * 99, anchor=[0] * 100)
    assert tw.credit.compute("seeupo", many).max() == 3.0 < tw.credit.compute("seeupo", many, bound=20.0).max()


def test_the_weights_of_earlier_turns_follow_their_own_trajectory_whatever_the_lengths() -> None:
    batch = batch_of((1, 2, 1), (2,)).with_columns({"turn.advantage": [1.0, 1.0, 1.0, -1.0]})
    scores = iter(np.array(line, np.float32) for line in ([0] * 6, [0, 0, 0, 0.1, 5, 5], [0, 0.5, 0.3, 0.1, 5, 5]))
    view: Any = SimpleNamespace(batch=batch, score=lambda: next(scores))
    steps = schedules["seeupo"].make({}, "schedule")(view)
    last = next(steps)
    assert last.rows.tolist() == [2] and last.refresh == ("old_logprob",)
    middle = steps.send({})
    assert middle.rows.tolist() == [1] and middle.columns["turn.advantage"] == pytest.approx([np.exp(0.1)] * 3 + [-1.0])
    first = steps.send({})  # the middle turn's tokens changed by 0.5 and 0.3: e^0.4 is bounded at 1.2, and so is the product
    assert first.rows.tolist() == [0, 3] and first.columns["turn.advantage"] == pytest.approx([1.2] * 3 + [-1.0])
    with pytest.raises(StopIteration):
        steps.send({})


def test_a_seeupo_run_makes_one_step_per_turn_number_and_each_starts_at_a_ratio_of_one(tmp_path: Path) -> None:
    result = train(tmp_path, iterations=1, **{"method.name": "seeupo", "learner.lr": 1e-2})
    batch = stored_batch(Run.open(result.folder), 1)
    assert result.metrics[-1]["learner/steps"] == batch.rollouts.t.max() + 1 > 1
    assert result.metrics[-1]["learner/span_ratio"] == pytest.approx(1, abs=1e-4)
    assert any("kl" in name for name in result.metrics[-1])


# -- ScalingInter -----------------------------------------------------------------------------------------------------------------


def test_attempts_of_a_run_get_longer_also_after_a_stop_and_are_otherwise_those_of_a_plain_run(tmp_path: Path) -> None:
    slots = TaskSlots(numbered(5), 0, 2)
    plain = slots.starts(0, 1)
    _, [starts] = gathers(make("scaling_inter", rounds=[4]), slots, 1, attempt)
    assert starts == [replace(start, max_turns=4) for start in plain]
    with pytest.raises(TurnwiseError, match=r"\[5, 8, 10\]"):
        make("scaling_inter", rounds=[0])
    own = {"method.name": "scaling_inter", "method.rounds": [1, 2], "method.every": 1}
    whole = train(tmp_path / "whole", **own)
    longest = [max(len(t.turns) for t in stored_batch(Run.open(whole.folder), n).trajectories) for n in (1, 2)]
    assert longest == [1, 2] == [line["collect/max_turns"] for line in whole.metrics[1:]]
    assert plan_state(whole.folder) == {"step": 2}
    resumes_alike(tmp_path / "stopped", whole, 2, **own)


# -- TCOD -------------------------------------------------------------------------------------------------------------------------

TEACHER = {"models.teacher": {"tiny": {"layers": 1, "hidden": 32, "heads": 2}}}


def test_an_expert_is_not_followed_where_it_fails() -> None:
    _, [starts] = gathers(make("tcod_b2f"), TaskSlots(numbered(5), 0, 2, expert=failed_expert), 1, attempt)
    assert len(starts) == 2 and all(start.branch is None for start in starts)


def test_the_advantage_is_the_teachers_gap_and_the_turns_of_the_expert_are_masked_also_after_a_stop(tmp_path: Path) -> None:
    own = {"method.name": "tcod", "method.direction": "b2f", "method.every": 2, "learner.lr": 1e-3, **TEACHER}
    whole = train(tmp_path / "whole", **own)
    batch = stored_batch(Run.open(whole.folder), 1, tokens=True)
    gap = batch.column("token.teacher_logprob") - batch.column("token.logprob")
    mask = batch.column("turn.mask")
    assert batch.column("token.advantage") == pytest.approx(gap, abs=1e-6) and 0 < mask.sum() < len(mask)
    given = [line["collect/given_turns"] for line in whole.metrics[1:]]
    assert given[0] > given[1] and whole.metrics[1].get("collect/lost_branches", 0) == 0
    resumes_alike(tmp_path / "stopped", whole, 2, **own)


def test_tcod_front_to_back_needs_a_teacher_and_shortens_attempts(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"\[models\.teacher\]"):
        train(tmp_path / "none", **{"method.name": "tcod"})
    result = train(tmp_path / "some", **{"method.name": "tcod", "method.every": 2, **TEACHER})
    longest = [max(len(t.turns) for t in stored_batch(Run.open(result.folder), n).trajectories) for n in (1, 2)]
    assert longest == [1, 2]
