"""One game, several seats: each has its own trajectory, reward, group and chance, and no token is learned from twice."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from seats_env import Race
from train_cases import TINY

import turnwise as tw
from turnwise.collect.collector import Branch, Collector, Start
from turnwise.collect.games import PLAYER_OFFSET, game_of, in_order, planned_group, player_id, start_of
from turnwise.collect.hooks import Hooks
from turnwise.collect.players import PlayerPolicy, RandomPlayer, ScriptedPlayer
from turnwise.data.rollouts import Rollouts, Stop, Trajectory
from turnwise.data.tasks import Task
from turnwise.envs.answers import BadAnswer, read_transition
from turnwise.envs.base import Observation, Share, Transition
from turnwise.envs.pool import Pool
from turnwise.methods.dpepo import Parallel
from turnwise.methods.step_hrl import Subtasks
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch, stored_trajectories
from turnwise.util.errors import TurnwiseError

TASK = Task("0", "train", {})


class Lines:
    """Every seat says the lines of its own list."""

    def __init__(self, *lines: list[str]):
        self.lines, self.turns = lines, Counter[int]()

    def act(self, observation: Observation, situation: Any) -> str | None:
        said = self.lines[observation.seat][self.turns[observation.seat]]
        self.turns[observation.seat] += 1
        return said


def play(player: Any, starts: list[Start] | None = None, **options: Any) -> list[Trajectory]:
    env = {key: options.pop(key) for key in ("goal", "first") if key in options}
    with Pool(partial(Race, **env), options.pop("size", 2), workers=options.pop("workers", 0)) as pool:
        return Collector(pool, PlayerPolicy(player), options.pop("max_turns", 20), **options).run(starts or [Start(TASK, 0, 0)])


def worth(one: Trajectory) -> list[float]:
    return [turn.reward for turn in one.turns]


def test_every_seat_has_its_own_turns_rewards_and_success() -> None:
    first, second = play(Lines(["2", "1"], ["1", "1"]))
    assert [turn.action for turn in first.turns] == ["2", "1"] and [turn.action for turn in second.turns] == ["1", "1"]
    assert [turn.observation for turn in first.turns] == ["Seat 0: 0 of 5", "Seat 0: 3 of 5"]
    assert [turn.observation for turn in second.turns] == ["Seat 1: 2 of 5", "Seat 1: 4 of 5"]
    assert (worth(first), worth(second)) == ([0.0, 0.0], [0.0, 1.0])
    assert (first.success, second.success) == (False, True) and {first.stop, second.stop} == {Stop.DONE}
    assert [turn.info["seat"] for one in (first, second) for turn in one.turns] == [0, 0, 1, 1]
    assert second.turns[-1].info["env"]["measures"] == {"total": 5} and "env" not in first.turns[-1].info


def test_what_another_seat_does_is_part_of_the_turn_before() -> None:
    """A reward that arrives while others move belongs to the last turn of the seat that it is for."""
    first, second = play(Lines(["pass", "x", "2", "2"], ["pass", "1", "1"]))
    assert worth(first) == [0.25, -0.1, 0.0, 1.0] and worth(second) == [0.5, 0.0]
    assert [turn.anchor for turn in first.turns] == ["0", "0", "0", "3"] and [turn.anchor for turn in second.turns] == ["0", "2"]
    assert first.turns[0].info["env"] == {"passed": 0} and second.turns[0].info["env"] == {"passed": 1}


def test_a_seat_that_moves_second_may_open_the_game() -> None:
    first, second = play(Lines(["2"], ["2", "2"]), first=1)
    assert [turn.action for turn in first.turns] == ["2"] and [turn.action for turn in second.turns] == ["2", "2"]
    lone, winner = play(Lines([], ["2"]), first=1, goal=2)
    assert not lone.turns and winner.success and worth(winner) == [1.0]


def test_seats_are_grouped_with_the_same_seat_of_other_games() -> None:
    starts = [Start(TASK, group, number, policy_seed=number) for number, group in enumerate((3, 3, "own"))]
    found = play(RandomPlayer(), starts)
    assert [one.group for one in found] == [3, 3 + PLAYER_OFFSET, 3, 3 + PLAYER_OFFSET, "own", "own seat 1"]
    assert [one.id for one in found] == [0, PLAYER_OFFSET, 1, 1 + PLAYER_OFFSET, 2, 2 + PLAYER_OFFSET]
    assert [planned_group(one.group) for one in found] == [3, 3, 3, 3, "own", "own"]
    assert start_of(starts[0], 1).policy_seed != starts[0].policy_seed and start_of(starts[0], 0) is starts[0]
    assert len(Rollouts.from_trajectories(found[:4]).group_labels) == 2


@pytest.mark.parametrize("number", [0, 7, -1, -300, 10**9])
def test_the_game_of_a_seat_is_known_from_its_id(number: int) -> None:
    made = {player_id(number, seat): Trajectory(0, player_id(number, seat), "0") for seat in (2, 0)}
    assert {game_of(one) for one in made} == {number}
    assert in_order([Start(TASK, 0, number)], made) == [made[number], made[player_id(number, 2)]]


def test_at_a_limit_all_seats_stop_and_no_turn_is_lost() -> None:
    first, second = play(Lines(["x", "1", "pass"], ["pass", "1"]), max_turns=3)
    assert [turn.action for turn in first.turns] == ["x", "1", "pass"] and [turn.action for turn in second.turns] == ["pass", "1"]
    assert (first.stop, second.stop) == (Stop.STEP_LIMIT, Stop.STEP_LIMIT) and worth(second) == [0.25, 0.0]


def test_a_fault_ends_all_seats_and_is_reported_once() -> None:
    heard: list[Any] = []
    first, second = play(Lines(["1", "crash"], ["1"]), hooks=Hooks(on_fault=lambda trajectory, result: heard.append(result.message)))
    assert {first.stop, second.stop} == {Stop.ENVIRONMENT_FAULT} and len(heard) == 1 and "fell off" in heard[0]
    again = play(Lines(["1", "crash", "1", "1", "1"], ["1", "1", "1", "1"]), [Start(TASK, 0, 0), Start(TASK, 1, 1)], size=1)
    assert [one.stop for one in again] == [Stop.ENVIRONMENT_FAULT] * 2 + [Stop.DONE] * 2


def test_a_player_that_gives_up_ends_the_game_for_all() -> None:
    first, second = play(ScriptedPlayer(["1"]))
    assert (first.stop, second.stop) == (Stop.CANCELLED, Stop.CANCELLED)


@pytest.mark.parametrize("ordered", [True, False])
def test_worker_processes_give_the_same_games(ordered: bool) -> None:
    starts = [Start(TASK, number, number, policy_seed=number) for number in range(6)]
    here = play(RandomPlayer(), starts, goal=9)
    there = play(RandomPlayer(), starts, goal=9, workers=2, size=4, ordered=ordered)
    assert [[(t.action, t.reward, t.anchor) for t in one.turns] for one in here] == [
        [(t.action, t.reward, t.anchor) for t in one.turns] for one in there
    ]
    assert sum(one.success for one in here) == 6


def test_a_game_cannot_be_branched_from() -> None:
    found = play(RandomPlayer())
    with pytest.raises(TurnwiseError, match="several players"):
        play(RandomPlayer(), [Start(TASK, 0, -1, branch=Branch(found[0], 1))])


@pytest.mark.parametrize("way", [Parallel(Race, 2), Subtasks(Race, 2)])
def test_ways_of_playing_for_one_player_reject_a_second_seat(way: Any) -> None:
    env = way()
    env.reset(TASK)
    with pytest.raises(TurnwiseError, match="one player"):
        for action in ("1: 1; 2: 1", "1", "1", "1"):
            env.step(action)


def test_finished_games_are_handed_over_whole() -> None:
    from collections import deque

    taken: list[list[int | str]] = []
    with Pool(Race, 2) as pool:
        collector = Collector(pool, PlayerPolicy(RandomPlayer()), 20, hand_over=lambda start, made: taken.append([one.id for one in made]))
        waiting = deque([Start(TASK, 0, 0), Start(TASK, 0, 1)])
        collector.stream(lambda: waiting.popleft() if waiting else None)
    assert sorted(taken) == [[0, PLAYER_OFFSET], [1, 1 + PLAYER_OFFSET]]


def test_shares_of_other_seats_are_checked() -> None:
    seen = Observation("x", seat=1)
    good = read_transition(Transition(seen, others={0: Share(1, True)}), Race())
    assert good.others == {0: Share(1.0, True)} and good.observation.seat == 1
    for wrong in (
        Transition(seen, others={0: 1.0}),
        Transition(Observation("x", seat=-1)),
        Transition(seen, others={0: Share(float("nan"))}),
    ):
        with pytest.raises(BadAnswer):
            read_transition(wrong, Race())


@pytest.mark.parametrize("context", ["full", "window"])
def test_both_seats_are_trained_and_every_sampled_token_once(context: str, tmp_path: Path) -> None:
    """A run on a game of two seats: the batch has the turns of both, in groups by seat, and a resumed run continues it."""
    options = TINY | {
        "env.name": f"{ROOT / 'tests' / 'support' / 'seats_env.py'}:Race",
        "env.max_turns": 6,
        "env.options": {"goal": 4, "lenient": True},
    }
    options |= {"sft.tasks": 12, "sft.steps": 8, "eval.every": 0, "agent.context": context, "engine.name": "native"}
    options |= {"out": str(tmp_path), "name": "try", "iterations": 1}
    made = tw.train(**options)
    found = stored_trajectories(Run(made.folder), 1, tokens=True)
    by_group: dict[Any, list[Trajectory]] = {}
    for one in found:
        by_group.setdefault(one.group, []).append(one)
        assert {turn.info["seat"] for turn in one.turns} == {int(one.id) // PLAYER_OFFSET}
    assert {group // PLAYER_OFFSET for group in by_group} == {0, 1} and all(len(members) <= 4 for members in by_group.values())
    batch = stored_batch(Run(made.folder), 1, tokens=True)
    assert len(batch) == sum(len(one.turns) for one in found)
    assert sum(len(turn.response_ids) for one in found for turn in one.turns) == batch.rollouts.token_offsets[-1]
    games: dict[int, list[Trajectory]] = {}
    for one in found:
        games.setdefault(game_of(int(one.id)), []).append(one)
    for seats in games.values():
        assert len({id(turn) for one in seats for turn in one.turns}) == sum(len(one.turns) for one in seats)
        assert sum(one.success for one in seats) <= 1
    tw.train(resume=made.folder, iterations=2)
    assert len(stored_trajectories(Run(made.folder), 2)) > 8
