"""Trajectories that travel in chunks while others are played."""

from __future__ import annotations

import pickle
from typing import Any

from cluster_light import SIZE, LightParts, places

from turnwise.cluster.chunks import Chunk, ChunkReceiver, ChunkSender, Pace
from turnwise.cluster.work import Call, Outcome, Spec, Work
from turnwise.cluster.worker import RolloutWorker
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.envs.pool import EnvResult, Fault

AT_ONCE = Pace(every=0.0, few=1, longest=0.0)


def play(sending: ChunkSender, trajectory: Trajectory, turns: int) -> None:
    for _ in range(turns):
        t = len(trajectory.turns)
        trajectory.turns.append(Turn(t, prompt_ids=list(range(5 + 3 * t)), response_ids=(t, 7), logprobs=(-0.5, -0.1)))
        sending.turned(trajectory)


def sent(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


def take(sending: ChunkSender, arrival: ChunkReceiver) -> None:
    chunk: Chunk | None = sending.chunk()
    assert chunk is not None
    arrival.take(sent(chunk))


def test_chunks_and_the_last_one_bring_what_was_played_and_nothing_twice() -> None:
    sending, arrival = ChunkSender(AT_ONCE), ChunkReceiver()
    first, second, third = (Trajectory(0, id) for id in range(3))
    assert sending.chunk() is None, "nothing was played yet"
    play(sending, first, 3)
    take(sending, arrival)
    play(sending, second, 2)
    play(sending, first, 1)
    take(sending, arrival)
    play(sending, first, 1)
    sending.end()
    assert sending.chunk() is None, "the last chunk comes with the outcome"
    fault = EnvResult(0, None, Fault.ERROR, "broken")
    outcome: Outcome = sent(Outcome([third, first, second], faults=[(second, fault)], sending=sending))
    assert len(outcome.value.message.lengths) == 1 and not arrival.lacks(outcome.value)
    outcome.join(arrival)
    assert outcome.value == [third, first, second] and outcome.faults == [(second, fault)]
    assert outcome.faults[0][0] is outcome.value[2]


def test_nobody_waits_for_chunks_of_what_was_played_to_its_end() -> None:
    class Slow(RolloutWorker):
        pace = Pace(every=3600.0)

    actor = Slow(LightParts)
    try:
        actor.ready()
        work = Work("session", Spec(), (Call("run", (places().groups(1),)),))
        assert len(actor.run(work).value) == SIZE
        assert actor.chunk(work.key) is None
    finally:
        actor.close()


def test_a_chunk_that_is_under_way_is_missed() -> None:
    sending, arrival, trajectory = ChunkSender(AT_ONCE), ChunkReceiver(), Trajectory(0, 0)
    play(sending, trajectory, 2)
    chunk = sending.chunk()
    last = sending.last([trajectory])
    assert chunk is not None and arrival.lacks(last)
    arrival.take(chunk)
    assert not arrival.lacks(last) and arrival.complete(last) == [trajectory]


def test_chunks_of_work_that_was_repeated_do_not_count() -> None:
    arrival = ChunkReceiver()
    for again in range(3):
        sending, trajectory = ChunkSender(AT_ONCE), Trajectory(0, again)
        play(sending, trajectory, 2)
        if again != 2:
            take(sending, arrival)
        play(sending, trajectory, 1)
        last = sending.last([trajectory])
        assert not arrival.lacks(last) and arrival.complete(last) == [trajectory]


def test_turns_that_are_noted_at_the_end_of_a_game_arrive_with_the_note() -> None:
    sending, arrival, trajectory = ChunkSender(AT_ONCE), ChunkReceiver(), Trajectory(0, 0)
    play(sending, trajectory, 3)
    take(sending, arrival)
    for turn in trajectory.turns:
        turn.info = {"seat": 1}
    found = arrival.complete(sending.last([trajectory]))
    assert found == [trajectory] and found[0].turns[0].info == {"seat": 1}
