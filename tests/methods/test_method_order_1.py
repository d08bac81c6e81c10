"""Order and curriculum: SeeUPO's reverse updates, ScalingInter's growing limit, TCOD's growing distillation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collect_cases import numbered
from order_runs import attempt, gathers, plan_state, resumes_alike, train

import turnwise as tw
from turnwise import Trajectory, Turn, TurnwiseError
from turnwise.data.batch import Batch
from turnwise.methods.planning import Places
from turnwise.methods.registry import plans, schedules
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

# -- SeeUPO -----------------------------------------------------------------------------------------------------------------------


def batch_of(returns: list[float], lengths: list[tuple[int, ...]], groups: list[int] | None = None) -> Batch:
    """A trajectory per return; its turns have so many tokens, and its reward comes at the end."""
    found = []
    for k, (value, tokens) in enumerate(zip(returns, lengths, strict=True)):
        turns = [Turn("s", response_ids=[1] * n, logprobs=[-1.0] * n) for n in tokens]
        turns[-1].reward = value
        found.append(Trajectory((groups or [0] * len(returns))[k], k, turns=turns))
    return Batch.of(found)


def test_the_weights_of_earlier_turns_follow_their_own_trajectory_whatever_the_lengths() -> None:
    batch = batch_of([1, 0], [(1, 2, 1), (2,)]).with_columns({"turn.advantage": [1.0, 1.0, 1.0, -1.0]})
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


def test_seeupo_advantages_are_standardised_over_turns_of_the_same_number_and_bounded() -> None:
    batch = batch_of([1, 0, 0, 0, 5, 5], [(1,), (1, 1), (1, 1), (1,), (1, 1), (1, 1)], [0, 0, 0, 0, 1, 1])
    found = tw.credit.compute("seeupo", batch.rollouts)
    first = np.array([0.75, -0.25, -0.25, -0.25, 0, 0])
    assert found[batch.rollouts.t == 0] == pytest.approx(first / np.std(first, ddof=1), abs=1e-6)
    assert (found[batch.rollouts.t == 1] == 0).all()  # among those that have a second turn, all returns of a group are equal
    many = batch_of([1.0] + [0.0] * 99, [(1,)] * 100)
    assert tw.credit.compute("seeupo", many.rollouts).max() == 3.0
    assert tw.credit.compute("seeupo", many.rollouts, bound=20.0).max() == pytest.approx(
        0.99 / np.sqrt(99 * 0.01**2 + 0.99**2) * 99**0.5, rel=1e-5
    )


def test_a_seeupo_run_makes_one_step_per_turn_number_and_each_starts_at_a_ratio_of_one(tmp_path: Path) -> None:
    result = train(tmp_path, iterations=1, **{"method.name": "seeupo", "learner.lr": 1e-2})
    batch = stored_batch(Run.open(result.folder), 1)
    assert result.metrics[-1]["learner/steps"] == batch.rollouts.t.max() + 1 > 1
    assert result.metrics[-1]["learner/span_ratio"] == pytest.approx(1, abs=1e-4)
    assert any("kl" in name for name in result.metrics[-1])


# -- ScalingInter -----------------------------------------------------------------------------------------------------------------


def test_the_turn_limit_grows_phase_by_phase_and_a_restored_plan_goes_on_there() -> None:
    places = Places(numbered(5), 0, 2)
    plan = plans["scaling_inter"].make({"rounds": [2, 3, 7], "every": 2}, "plan")

    def caps(own: Any, batches: int) -> list[int]:
        return [gathers(own, places, 1, attempt)[1][0][0].max_turns or 0 for _ in range(batches)]

    assert caps(plan, 3) == [2, 2, 3]
    again = plans["scaling_inter"].make({"rounds": [2, 3, 7], "every": 2}, "plan")
    again.load_state(plan.state())
    assert caps(again, 4) == [3, 7, 7, 7]
    with pytest.raises(TurnwiseError, match=r"\[5, 8, 10\]"):
        plans["scaling_inter"].make({"rounds": [0]}, "plan")


def test_attempts_of_a_run_get_longer_also_after_a_stop(tmp_path: Path) -> None:
    own = {"method.name": "scaling_inter", "method.rounds": [1, 2], "method.every": 1}
    whole = train(tmp_path / "whole", **own)
    longest = [max(len(t.turns) for t in stored_batch(Run.open(whole.folder), n).trajectories) for n in (1, 2)]
    assert longest == [1, 2] == [line["collect/max_turns"] for line in whole.metrics[1:]]
    assert plan_state(whole.folder) == {"step": 2}
    resumes_alike(tmp_path / "stopped", whole, 2, **own)


# -- TCOD -------------------------------------------------------------------------------------------------------------------------


def expert(actions: int) -> Any:
    """An expert that needs so many actions for every task."""
    return lambda tasks: [
        Trajectory(0, "expert", task.id, [Turn(f"{t}", action="+", learned=False) for t in range(actions)], success=True) for task in tasks
    ]


def test_the_students_share_of_an_attempt_grows_from_the_front_or_from_the_back() -> None:
    places = Places(numbered(5), 0, 2, expert=expert(4))
    front = plans["tcod_f2b"].make({"every": 2, "limit": 2}, "plan")
    limits = [gathers(front, places, 1, attempt)[1][0][0].max_turns for _ in range(5)]
    assert limits == [1, 2, 2, 2, 2]
    back = plans["tcod_b2f"].make({"every": 1}, "plan")
    rounds = [gathers(back, places, 1, attempt)[1][0] for _ in range(5)]
    assert [[start.branch.t if start.branch is not None else 0 for start in starts] for starts in rounds] == [
        [c, c] for c in (2, 1, 0, 0, 0)
    ]
    assert all(len({start.group for start in starts}) == 1 for starts in rounds)
    restored = plans["tcod_b2f"].make({"every": 1}, "plan")
    restored.load_state({"step": 1})
    assert gathers(restored, places, 1, attempt)[1][0][0].branch.t == 1  # type: ignore[union-attr]


def test_where_the_expert_fails_the_student_plays_from_the_beginning() -> None:
    places = Places(numbered(5), 0, 2, expert=lambda tasks: [Trajectory(0, 0, task.id) for task in tasks])
    _, [starts] = gathers(plans["tcod_b2f"].make({}, "plan"), places, 1, attempt)
    assert len(starts) == 2 and all(start.branch is None for start in starts)


TEACHER = {"models.teacher": {"tiny": {"layers": 1, "hidden": 32, "heads": 2}}}


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


def test_an_attempt_that_the_plan_may_change_is_otherwise_the_one_of_a_plain_run() -> None:
    places = Places(numbered(5), 0, 2)
    plain = places.starts(0, 1)
    _, [starts] = gathers(plans["scaling_inter"].make({"rounds": [4]}, "plan"), places, 1, attempt)
    assert starts == [replace(start, max_turns=4) for start in plain]
