"""Trajectories that travel to another process as a parcel."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.cluster.work import Outcome
from turnwise.data.batch import Batch
from turnwise.data.parcel import Packer, Parcel, Unpacker
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult, Fault
from turnwise.util.prefix import Prefix

TOKENS = st.lists(st.integers(0, 300_000), max_size=5)
FLOATS = st.lists(st.floats(allow_nan=False), max_size=3)
KINDS = st.sampled_from([list, tuple])


def sent(trajectories: list[Trajectory]) -> list[Trajectory]:
    """What arrives in another process."""
    parcel: Parcel = pickle.loads(pickle.dumps(Parcel.of(trajectories)))
    return parcel.unpacked()


def dialogue(id: int, turns: int, fresh: int = 3) -> Trajectory:
    """Every prompt is the last one, its response, and something new."""
    prompt, made = list(range(1000, 1000 + fresh)), []
    for t in range(turns):
        response = [7000 + 10 * t, id]
        made.append(Turn(f"state {t}", 0.5 * t, observation="you see", response_ids=response, prompt_ids=prompt, logprobs=[-0.25, -1e-9]))
        prompt = prompt + response + [5000 + t] * fresh
    return Trajectory(0, id, "task", made, Stop.STEP_LIMIT, "", True, 3, "end", "goal")


@st.composite
def attempts(draw: Any) -> list[Trajectory]:
    """Prompts that go on, start again, or have nothing to do with each other, as lists or tuples."""
    found = []
    for id in range(draw(st.integers(0, 4))):
        turns: list[Turn] = []
        for t in range(draw(st.integers(0, 4))):
            said, kind = draw(TOKENS), draw(KINDS)
            last: list[int] = [*turns[-1].prompt_ids, *turns[-1].response_ids] if turns else []
            kept = draw(st.integers(0, len(last)))
            numbers: dict[str, Any] = {"logprobs": draw(KINDS)(draw(FLOATS)), "reports": draw(st.dictionaries(st.text(max_size=2), FLOATS))}
            turns.append(Turn(t, prompt_ids=kind(last[:kept] + draw(TOKENS)), response_ids=draw(KINDS)(said), **numbers))
        found.append(Trajectory(0, id, turns=turns))
    return found


@settings(max_examples=40, deadline=None)
@given(attempts())
def test_what_arrives_is_equal_to_what_was_sent(trajectories: list[Trajectory]) -> None:
    arrived = sent(trajectories)
    assert arrived == trajectories
    for before, after in zip(trajectories, arrived, strict=True):
        for left, right in zip(before.turns, after.turns, strict=True):
            assert [type(getattr(left, name)) for name in ("prompt_ids", "response_ids", "logprobs")] == [
                type(getattr(right, name)) for name in ("prompt_ids", "response_ids", "logprobs")
            ]


def test_of_a_growing_dialogue_only_what_is_new_travels() -> None:
    trajectories = [dialogue(id, turns=20) for id in range(4)]
    parcel = Parcel.of(trajectories)
    said, opening, new = 4 * 20 * 2, 3, 4 * 19 * 3
    assert len(parcel.tokens) == said + opening + new
    assert isinstance(parcel.tokens, np.ndarray) and isinstance(parcel.floats, np.ndarray)
    assert parcel.unpacked() == trajectories
    whole = list(range(100))
    shared = Trajectory(0, 0, turns=[Turn(t, prompt_ids=Prefix(whole, 50 + t)) for t in range(10)])
    assert len(Parcel.of([shared, *trajectories]).tokens) == len(parcel.tokens) + 59 and sent([shared]) == [shared]


def test_a_trajectory_that_was_changed_travels_again_if_it_is_forgotten() -> None:
    changed, other = dialogue(0, turns=3), dialogue(1, turns=2)
    packer, unpacker = Packer(), Unpacker()
    assert unpacker.unpack(packer.pack([], [changed, other])) == []
    for turn in changed.turns:
        turn.info = {"seat": 1}
    packer.forget(changed)
    packer.forget(dialogue(2, turns=1))  # one that was not packed
    last = packer.pack([changed, other])
    assert unpacker.unpack(last) == [changed, other] and len(last.shapes) == 3


def test_turns_that_attempts_share_and_attempts_that_come_twice_are_one_object_again() -> None:
    parent = dialogue(0, turns=3)
    branch = Trajectory(0, 1, turns=[*parent.turns[:2], *dialogue(1, turns=3).turns[2:]], parent=0, branch_t=2)
    first, second, again = sent([parent, branch, parent])
    assert (first, second) == (parent, branch)
    assert first is again
    assert first.turns[1] is second.turns[1] and first.turns[2] is not second.turns[2]


def test_what_is_no_plain_number_travels_as_it_is() -> None:
    odd = Turn("a", prompt_ids=np.array([1, 2]), response_ids=[2**70], logprobs=[None], reports={"x": np.array([0.5])})  # type: ignore[arg-type,list-item]
    (found,) = sent([Trajectory(0, 0, turns=[Turn("b", prompt_ids=[1, 2]), odd])])
    turn = found.turns[1]
    assert np.array_equal(turn.prompt_ids, [1, 2]) and np.array_equal(turn.reports["x"], [0.5])
    assert (turn.response_ids, turn.logprobs) == ([2**70], [None])


def test_an_outcome_brings_its_trajectories_and_the_faults_of_the_same_ones() -> None:
    good, bad = dialogue(0, turns=2), dialogue(1, turns=1)
    fault = EnvResult(0, None, Fault.ERROR, "broken")
    outcome = Outcome([good, bad], {"generations": 3.0}, faults=[(bad, fault)], seconds={"play": 1.0})
    found: Outcome = pickle.loads(pickle.dumps(outcome))
    assert found.value == [good, bad] and found.faults == [(bad, fault)] and found.counts == outcome.counts
    assert found.faults[0][0] is found.value[1]
    assert found.seconds["play"] == 1.0 and found.seconds["pack"] >= 0.0
    texts: Outcome = pickle.loads(pickle.dumps(Outcome(["an opening"])))
    assert texts == Outcome(["an opening"])


def test_a_batch_brings_its_trajectories_columns_and_tasks() -> None:
    batch = Batch.of([dialogue(id, turns=2) for id in range(3)], [Task("task", data={"number": 1})]).with_columns(
        {"turn.mine": np.arange(6)}
    )
    found: Batch = pickle.loads(pickle.dumps(batch))
    assert found.trajectories == batch.trajectories and found.tasks == batch.tasks
    assert found.rollouts.names() == batch.rollouts.names()
    assert all(np.array_equal(found.column(name), batch.column(name)) for name in batch.rollouts.names())
    assert found.rows(2) == batch.rows(2)


def test_several_parcels_of_one_packer_bring_what_one_would_bring() -> None:
    parent, other = dialogue(0, turns=3), dialogue(2, turns=2)
    branch = Trajectory(0, 1, turns=[*parent.turns[:2], *dialogue(1, turns=3).turns[2:]], parent=0, branch_t=2)
    packer, unpacker = Packer(), Unpacker()
    pieces = [pickle.loads(pickle.dumps(packer.pack(given))) for given in ([other, parent], [branch], [parent, branch, other])]
    (_, first), (second,), last = (unpacker.unpack(piece) for piece in pieces)
    assert last == [parent, branch, other] and last[0] is first and last[1] is second
    assert second.turns[1] is first.turns[1]
    assert not pieces[2].shapes and len(pieces[1].shapes) == 1  # what is known does not travel again
