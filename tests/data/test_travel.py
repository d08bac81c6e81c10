"""Trajectories that travel to another process, and the schema of their records."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest

from turnwise.cluster.work import Outcome
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.schema import TRAJECTORY, TURN, from_record
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult, Fault
from turnwise.util.prefix import Prefix


def dialogue(id: int, turns: int, fresh: int = 3) -> Trajectory:
    """Every prompt is the last one, its response, and something new."""
    whole, played = list(range(1000, 1000 + fresh)), []
    for t in range(turns):
        response = (7000 + 10 * t, id)
        prompt = Prefix(whole)
        played.append(Turn(f"state {t}", 0.5 * t, observation="you see", response_ids=response, prompt_ids=prompt, logprobs=(-0.25, -1e-9)))
        whole += [*response, *[5000 + t] * fresh]
    return Trajectory(0, id, "task", played, Stop.STEP_LIMIT, "", True, 3, "end", "goal")


def test_the_prompts_of_a_dialogue_travel_as_one_list() -> None:
    played = dialogue(0, turns=200)
    arrived: Trajectory = pickle.loads(pickle.dumps(played))
    assert arrived == played
    assert len({id(turn.prompt_ids.whole) for turn in arrived.turns}) == 1  # type: ignore[attr-defined]
    assert len(pickle.dumps(played)) < 2 * len(pickle.dumps(dialogue(0, turns=100)))


def test_an_outcome_brings_its_trajectories_and_the_faults_of_the_same_ones() -> None:
    good, bad = dialogue(0, turns=2), dialogue(1, turns=1)
    fault = EnvResult(0, None, Fault.ERROR, "broken")
    outcome = Outcome([good, bad], faults=[(bad, fault)])
    arrived: Outcome = pickle.loads(pickle.dumps(outcome))
    assert arrived.value == [good, bad] and arrived.faults == [(bad, fault)]
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
