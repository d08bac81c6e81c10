"""One batch: trajectories, tasks and columns whose level is part of their name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.data.batch import Batch
from turnwise.data.rollouts import LEVELS, Rollouts, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError


def attempt(number: int, group: int, tokens: list[int], **more: object) -> Trajectory:
    turns = [
        Turn(f"s{t}", reward=float(t), prompt_ids=(1, 2), response_ids=tuple(range(3, 3 + n)), logprobs=(-0.5,) * n, version=4)
        for t, n in enumerate(tokens)
    ]
    return Trajectory(group, number, task=f"task-{group}", turns=turns, success=number % 2 == 1, **more)  # type: ignore[arg-type]


def batch_of(*trajectories: Trajectory) -> Batch:
    return Batch.of(trajectories, [Task(f"task-{g}", data={"answer": g}) for g in range(9)])


BATCH = batch_of(attempt(7, 1, [2, 1]), attempt(3, 0, [1, 3, 1]), attempt(5, 1, [1]))


def test_rows_and_numbers_are_found_by_place() -> None:
    assert [list(BATCH.rows(k)) for k in range(3)] == [[0, 1], [2, 3, 4], [5]]
    labels = BATCH.rollouts.trajectory_labels[BATCH.numbers].tolist()
    assert labels == [7, 3, 5] and BATCH.task(1).data == {"answer": 0}
    assert set(BATCH.tasks) == {"task-0", "task-1"}  # and no task that nobody attempted


def test_a_column_is_as_long_as_its_level_and_not_as_any_other() -> None:
    sizes = {level: BATCH.rollouts.size(level) for level in LEVELS}
    assert sizes == {"group": 2, "trajectory": 3, "turn": 6, "token": 9}
    for level, size in sizes.items():
        batch = BATCH.with_columns({f"{level}.mine": np.arange(size)})
        assert batch.column(f"{level}.mine").tolist() == list(range(size)) and not BATCH.has(f"{level}.mine")
        with pytest.raises(TurnwiseError, match=f"with {size} entries .one per {level}."):
            BATCH.with_columns({f"{level}.mine": np.arange(size + 1)})


def test_as_many_tokens_as_turns_is_no_reason_to_mix_them_up() -> None:
    batch = batch_of(attempt(0, 0, [2, 0, 1]))
    by_token = batch.with_columns({"token.x": [1.0, 2.0, 3.0]})
    assert by_token.has("token.x") and not by_token.has("turn.x")
    assert batch.with_columns({"turn.x": [1.0, 2.0, 3.0]}).rollouts.spread("turn.x", "token").tolist() == [1.0, 1.0, 3.0]


@pytest.mark.parametrize("name", ["mine", "row.mine", "token.", "token.a b"])
def test_a_column_without_a_level_is_refused(name: str) -> None:
    with pytest.raises(TurnwiseError, match="named by its level"):
        BATCH.with_columns({name: np.zeros(6)})


def test_built_in_columns_have_names_of_the_same_kind() -> None:
    assert BATCH.column("turn.reward").tolist() == [0, 1, 0, 1, 2, 0]
    assert BATCH.column("trajectory.return").tolist() == [3, 0, 1]  # in the order of the labels 3, 5, 7
    assert BATCH.column("trajectory.success").tolist() == [True, True, True]
    assert BATCH.column("token.logprob").tolist() == [-0.5] * 9 and BATCH.column("turn.version").tolist() == [4] * 6
    changed = BATCH.with_columns({"turn.reward": np.ones(6, np.float32)})
    assert changed.rollouts.reward.tolist() == [1.0] * 6 and changed.rollouts.reward.dtype == np.float64
    with pytest.raises(TurnwiseError, match="follows from other columns"):
        BATCH.with_columns({"trajectory.return": np.zeros(3)})
    with pytest.raises(TurnwiseError, match=r"Did you mean 'turn\.reward'"):
        BATCH.column("turn.rewards")


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=5), st.randoms())
@settings(max_examples=60, deadline=None)
def test_spreading_a_column_is_looking_it_up(shapes: list[list[int]], chance: object) -> None:
    shapes = [*shapes, [1]]
    batch = batch_of(*(attempt(number, number % 3, tokens) for number, tokens in enumerate(shapes)))
    r, rng = batch.rollouts, np.random.default_rng(len(shapes))
    for coarse, level in enumerate(LEVELS):
        values = rng.normal(size=r.size(level))
        made = batch.with_columns({f"{level}.x": values}).rollouts
        owner = {"group": r.group, "trajectory": r.trajectory, "turn": np.arange(len(r))}
        if level != "token":
            by_turn = values[owner[level]]
            assert made.spread(f"{level}.x", "turn").tolist() == by_turn.tolist()
            turn_of = [row for row, n in enumerate(np.diff(r.token_offsets)) for _ in range(n)]
            assert made.spread(f"{level}.x", "token").tolist() == by_turn[turn_of].tolist()
        for finer in LEVELS[:coarse]:
            with pytest.raises(TurnwiseError, match="coarser"):
                made.spread(f"{level}.x", finer)


def test_all_levels_survive_a_file(tmp_path: Path) -> None:
    given = {f"{level}.{name}": np.arange(BATCH.rollouts.size(level)) for level in LEVELS for name in ("a", "advantage")}
    rollouts = BATCH.with_columns(given).rollouts
    back = Rollouts.load(rollouts.save(tmp_path / "r.npz"))
    assert sorted(back.names()) == sorted(rollouts.names())
    assert all(back.column(name).tolist() == values.tolist() for name, values in given.items())


def test_reports_of_the_engine_become_columns_of_tokens() -> None:
    one, two = attempt(0, 0, [2, 0]), attempt(1, 0, [1])
    for trajectory in (one, two):
        for turn in trajectory.turns:
            turn.reports = {"entropy": [0.25] * len(turn.response_ids)} if turn.response_ids else {}
    assert Batch.of([one, two]).column("token.entropy").tolist() == [0.25] * 3
    two.turns[0].reports = {"entropy": [0.1, 0.2]}
    with pytest.raises(TurnwiseError, match="2 values for 1 response tokens"):
        Batch.of([one, two])


def test_branches_name_their_parents_by_number() -> None:
    batch = batch_of(attempt(9, 0, [1, 1]), attempt(4, 0, [1, 1], parent=9, branch_t=1), attempt(6, 0, [1], parent=77, branch_t=1))
    assert batch.rollouts.trajectory_labels.tolist() == [4, 6, 9]
    assert batch.column("trajectory.parent").tolist() == [2, -1, -1] and batch.column("trajectory.branch_t").tolist() == [1, 1, 0]


def test_a_part_of_a_batch_keeps_its_columns() -> None:
    whole = BATCH.with_columns({"turn.advantage": np.arange(6.0), "token.x": np.arange(9.0), "turn.reward": np.full(6, 8.0)})
    part = whole.part([2, 1])
    assert [trajectory.id for trajectory in part.trajectories] == [5, 3]
    assert part.column("turn.advantage").tolist() == [5, 2, 3, 4] and part.column("token.x").tolist() == [8, 3, 4, 5, 6, 7]
    assert part.column("turn.reward").tolist() == [8.0] * 4 and part.advantage_level == "turn"


def test_nothing_is_no_batch() -> None:
    with pytest.raises(TurnwiseError, match="at least one trajectory"):
        Batch.of([Trajectory(0, 0)])


def test_an_unknown_column_lists_every_column_that_can_be_read() -> None:
    branch = attempt(9, 1, [1], parent=7, branch_t=0)
    batch = batch_of(attempt(7, 1, [2, 1]), branch).with_columns({"group.mine": [1.0]})
    with pytest.raises(TurnwiseError) as told:
        batch.column("turn.zzz")
    known = str(told.value).split("Known: ")[1].split(", ")
    assert {"trajectory.turns", "trajectory.return", "trajectory.parent", "group.mine", "turn.reward", "token.logprob"} <= set(known)
    for name in known:
        assert len(batch.column(name)) == batch.rollouts.size(name.split(".")[0])  # type: ignore[arg-type]
    with pytest.raises(TurnwiseError, match=r"mine needs the column 'zzz'.*trajectory\.return"):
        batch.need("zzz", "mine")
