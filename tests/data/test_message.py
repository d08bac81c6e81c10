"""Trajectories that travel to another process as messages."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.cluster.work import Outcome
from turnwise.data.batch import Batch
from turnwise.data.message import Message
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.schema import TRAJECTORY, TURN, from_record
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult, Fault
from turnwise.util.prefix import Prefix

TOKENS = st.lists(st.integers(0, 300_000), max_size=5)
FLOATS = st.lists(st.floats(allow_nan=False), max_size=3).map(tuple)


def sent(trajectories: list[Trajectory]) -> list[Trajectory]:
    """What arrives in another process."""
    message: Message = pickle.loads(pickle.dumps(Message.encode(trajectories)))
    return message.decode()


def dialogue(id: int, turns: int, fresh: int = 3) -> Trajectory:
    """Every prompt is the last one, its response, and something new."""
    prompt, played = list(range(1000, 1000 + fresh)), []
    for t in range(turns):
        response = (7000 + 10 * t, id)
        played.append(Turn(f"state {t}", 0.5 * t, observation="you see", response_ids=response, prompt_ids=prompt, logprobs=(-0.25, -1e-9)))
        prompt = [*prompt, *response] + [5000 + t] * fresh
    return Trajectory(0, id, "task", played, Stop.STEP_LIMIT, "", True, 3, "end", "goal")


def family() -> tuple[Trajectory, Trajectory]:
    """A trajectory, and a branch that shares its first two turns."""
    parent = dialogue(0, turns=3)
    return parent, Trajectory(0, 1, turns=[*parent.turns[:2], *dialogue(1, turns=3).turns[2:]], parent=0, branch_t=2)


@st.composite
def attempts(draw: Any) -> list[Trajectory]:
    """Prompts that go on, start again, or have nothing to do with each other, as lists or tuples."""
    trajectories = []
    for id in range(draw(st.integers(0, 4))):
        turns: list[Turn] = []
        for t in range(draw(st.integers(0, 4))):
            last: list[int] = [*turns[-1].prompt_ids, *turns[-1].response_ids] if turns else []
            shared, container = draw(st.integers(0, len(last))), draw(st.sampled_from([list, tuple, Prefix]))
            numbers: dict[str, Any] = {"logprobs": draw(FLOATS), "reports": draw(st.dictionaries(st.text(max_size=2), FLOATS))}
            turns.append(Turn(t, prompt_ids=container(last[:shared] + draw(TOKENS)), response_ids=tuple(draw(TOKENS)), **numbers))
        trajectories.append(Trajectory(0, id, turns=turns))
    return trajectories


@settings(max_examples=60, deadline=None)
@given(attempts())
def test_what_arrives_is_equal_to_what_was_sent(trajectories: list[Trajectory]) -> None:
    for trajectory, arrived in zip(trajectories, sent(trajectories), strict=True):
        for left, right in zip(trajectory.turns, arrived.turns, strict=True):
            left.prompt_ids = list(left.prompt_ids)
            assert left == right and isinstance(right.prompt_ids, Prefix)
        trajectory.turns = arrived.turns
        assert trajectory == arrived


def test_numpy_arrays_arrive_as_the_same_tokens() -> None:
    odd = Turn("a", prompt_ids=np.array([1, 2]), response_ids=np.array([3]), logprobs=np.array([-0.5]))  # type: ignore[arg-type]
    (arrived,) = sent([Trajectory(0, 0, turns=[Turn("b", prompt_ids=[1, 2]), odd])])
    turn = arrived.turns[1]
    assert (list(turn.prompt_ids), turn.response_ids, turn.logprobs) == ([1, 2], (3,), (-0.5,))


def test_of_a_growing_dialogue_only_what_is_new_travels() -> None:
    trajectories = [dialogue(id, turns=20) for id in range(4)]
    message = Message.encode(trajectories)
    assert len(message.tokens["response_ids"]) == 4 * 20 * 2
    assert len(message.tokens["middle_ids"]) == 3 + 4 * 19 * 3  # one opening, and what is new
    arrived = message.decode()
    assert arrived == trajectories
    assert all(len({id(turn.prompt_ids.whole) for turn in one.turns}) == 1 for one in arrived), "a dialogue is one list"  # type: ignore[attr-defined]


def test_turns_that_attempts_share_and_attempts_that_come_twice_are_one_object_again() -> None:
    parent, branch = family()
    first, second, again = sent([parent, branch, parent])
    assert (first, second) == (parent, branch)
    assert first is again
    assert first.turns[1] is second.turns[1] and first.turns[2] is not second.turns[2]


def test_an_outcome_brings_its_trajectories_and_the_faults_of_the_same_ones() -> None:
    good, bad = dialogue(0, turns=2), dialogue(1, turns=1)
    fault = EnvResult(0, None, Fault.ERROR, "broken")
    outcome = Outcome([good, bad], Counter(generations=3), faults=[(bad, fault)])
    arrived: Outcome = pickle.loads(pickle.dumps(outcome))
    assert arrived.value == [good, bad] and arrived.faults == [(bad, fault)] and arrived.counts == outcome.counts
    assert arrived.faults[0][0] is arrived.value[1]
    assert pickle.loads(pickle.dumps(Outcome(["an opening"]))) == Outcome(["an opening"])


def test_a_batch_brings_its_trajectories_columns_and_tasks() -> None:
    batch = Batch.of([dialogue(id, turns=2) for id in range(3)], [Task("task", data={"number": 1})]).with_columns(
        {"turn.mine": np.arange(6)}
    )
    arrived: Batch = pickle.loads(pickle.dumps(batch))
    assert arrived.trajectories == batch.trajectories and arrived.tasks == batch.tasks
    assert arrived.rollouts.names() == batch.rollouts.names()
    assert all(np.array_equal(arrived.column(name), batch.column(name)) for name in batch.rollouts.names())


def test_the_schema_has_every_field_of_turns_and_trajectories() -> None:
    assert {field.name for field in TURN} == {field.name for field in fields(Turn)}
    assert {field.name for field in TRAJECTORY} == {field.name for field in fields(Trajectory)} - {"turns"}


def test_texts_of_earlier_versions_are_read_and_foreign_ones_refused() -> None:
    turn = {"observation": "o", "thought": "", "action": "go", "response": "go", "reward": 1, "valid": True, "tokens": 2}
    record = {"id": 3, "group": 0, "task": "t", "seed": 5, "stop": "done", "stop_detail": "", "success": True, "reward": 1, "turns": [turn]}
    played = Turn(None, 1.0, observation="o", action="go", response="go")
    assert from_record(record) == Trajectory(0, 3, "t", [played], Stop.DONE, "", True, 5)
    for name, wrong in (("id", None), ("task", 5), ("stop", "tired"), ("seed", "x")):
        with pytest.raises((TypeError, ValueError)):
            from_record({**record, name: wrong})
