"""The textarena environment on the real package: matches, opponents, self-play, snapshots and the isolation of chance."""

# ruff: noqa: E402
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from needing import ready
from openai_server import serving

import turnwise as tw

ready("textarena")

from turnwise.collect.collector import Collector, Start
from turnwise.collect.players import PlayerPolicy, RandomPlayer
from turnwise.data.rollouts import Stop
from turnwise.data.tasks import Task
from turnwise.envs.base import Share
from turnwise.envs.check import check, essence
from turnwise.envs.pool import Pool
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive
from turnwise_envs.textarena.env import TextArenaEnv
from turnwise_envs.textarena.moves import TALK
from turnwise_envs.textarena.solvers import EXPERTS
from turnwise_envs.textarena.table import games

RUNS = [name for name, game in games().items() if game.runs and not game.needs]
SLOW = {"RushHour", "Sokoban", "Game2048", "Set"}  # seconds to begin on a busy machine
FEW = ("TicTacToe", "PigDice", "KuhnPoker", "Blackjack", "Snake")  # with and without chance, for one, two and simultaneous players


def play(env: Any, task: Task, seed: int, name: str, turns: int = 12) -> Iterator[Any]:
    """An attempt of listed actions, answer by answer."""
    seen = env.reset(task, seed)
    yield essence(seen)
    for turn in range(turns):
        moves = seen.actions or TALK
        answer = env.step(moves[derive(seed, name, turn) % len(moves)])
        seen = answer.observation
        yield essence(answer)
        if answer.done:
            return


def first(name: str, split: str = "train", **options: Any) -> tuple[TextArenaEnv, Task]:
    env = TextArenaEnv(name, **options)
    return env, env.tasks(split)[1]


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SLOW])
def test_every_game_begins_lists_its_moves_and_gives_the_same_again(name: str) -> None:
    env, task = first(name)
    once, again = list(play(env, task, 3, name, 3)), list(play(TextArenaEnv(name), task, 3, name, 3))
    assert once == again and once[0][0].startswith("Your task is: ")
    assert env.reset(task, 3).actions


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_every_game_keeps_the_contract(name: str) -> None:
    report = check(partial(TextArenaEnv, name), episodes=2, turns=8)
    assert report.ok, report


def test_games_in_threads_are_those_that_are_played_alone() -> None:
    alone = {name: list(play(*first(name), 7, name)) for name in FEW}
    with ThreadPoolExecutor(5) as threads:
        found = threads.map(lambda name: list(play(*first(name), 7, name)), FEW * 2)
    assert list(found) == [alone[name] for name in FEW * 2]


def test_the_seed_changes_what_the_task_does_not_fix() -> None:
    env, task = first("PigDice")
    assert list(play(env, task, 1, "same")) == list(play(env, task, 1, "same"))
    assert [one[:1] for one in play(env, task, 1, "x")][:1] == [one[:1] for one in play(env, task, 2, "x")][:1]
    assert list(play(env, task, 1, "x")) != list(play(env, task, 2, "x"))


@pytest.mark.parametrize("name", sorted(set(EXPERTS) & set(RUNS) - {"ConnectFour", "WildTicTacToe"}))
def test_experts_win(name: str) -> None:
    env, lost, won = TextArenaEnv(name), 0, 0
    for task in env.tasks("valid", n=4):
        env.reset(task, 0)
        while not (answer := env.step(env.expert_action())).done:  # type: ignore[attr-defined]
            assert "refused" not in answer.info
        won, lost = won + answer.success, lost + (answer.reward == 0)
    assert lost == 0 and won >= (2 if name == "TicTacToe" else 3)


def test_a_win_a_draw_and_a_loss() -> None:
    def worth(lines: str, **options: Any) -> tuple[Any, ...]:
        env = TextArenaEnv("TicTacToe", opponent="self", **options)
        env.reset(env.tasks("train")[0])
        for cell in lines:
            answer = env.step(cell)
        assert answer.done
        return answer.reward, answer.success, answer.others, answer.info["measures"]["draw"]

    assert worth("03142") == (1.0, True, {1: Share(0.0, False)}, 0.0)
    assert worth("03142", rewards="sign") == (1.0, True, {1: Share(-1.0, False)}, 0.0)
    assert worth("012435768") == (0.5, False, {1: Share(0.5, False)}, 1.0)
    assert worth("00" + "0") == (0.0, False, {0: Share(1.0, True)}, 0.0)  # a second mistake in a row loses, as the game has it


def test_a_refused_move_is_answered_and_asked_for_again() -> None:
    env, task = first("TicTacToe", seat=0)
    before = env.reset(task).anchor
    answer = env.step("I do not know")
    assert answer.info["refused"] and not answer.done and "invalid" in answer.observation.text and answer.observation.anchor != before
    answer = env.step("[9]")
    assert answer.done and answer.reward == 0 and answer.info["measures"]["refused"] == 2


def test_self_play_gives_every_seat_its_trajectory() -> None:
    for name, seats in (("TicTacToe", 2), ("ThreePlayerGOPS", 3)):
        env = TextArenaEnv(name, opponent="self")
        starts = [Start(task, place, place, policy_seed=place) for place, task in enumerate(env.tasks("train", n=4))]
        with Pool(partial(TextArenaEnv, name, opponent="self"), 3) as pool:
            found = Collector(pool, PlayerPolicy(RandomPlayer()), 50).run(starts)
        assert len(found) == 4 * seats and {one.stop for one in found} == {Stop.DONE}
        for game in (found[k : k + seats] for k in range(0, len(found), seats)):
            assert len({one.group for one in game}) == seats and len({one.task for one in game}) == 1
            total = sum(turn.reward for one in game for turn in one.turns)
            assert seats != 2 or total == 1.0
            assert max(len(one.turns) for one in game) - min(len(one.turns) for one in game) <= 1


def test_self_play_is_evaluated_against_a_fixed_opponent() -> None:
    env = TextArenaEnv("Nim", opponent="self", eval_opponent="expert")
    train, valid = env.tasks("train")[0], env.tasks("valid")[1]
    assert (train.data["opponent"], valid.data["opponent"], valid.data["seat"]) == ("self", "expert", 1)
    assert "seat" not in train.data and train.data["number"] % 3 == 0 and valid.data["number"] % 3 == 1
    assert env.reset(valid).seat == 0 and "Player 0 removes" in env.reset(valid).text
    assert env.reset(train).seat == 0 and env.step("[0 1]").observation.seat == 1


def test_openings_differ_by_task_and_leave_the_rules_to_be_read() -> None:
    env = TextArenaEnv("TicTacToe", opponent="self", opening=2, rules=False)
    seen = [env.reset(task) for task in env.tasks("train", n=8)]
    assert len({one.anchor for one in seen}) > 4 and {len(one.actions or ()) for one in seen} == {7}
    assert all(one.text.startswith("Your task is: win this game of TicTacToe as player 0.\n") for one in seen)
    assert env.step(seen[-1].actions[0]).observation.text.startswith("Your task is: win this game of TicTacToe as player 1.\n")  # type: ignore[index]


def test_a_model_behind_a_server_plays_the_other_seat() -> None:
    statuses = [503]  # a fault that passes, then answers

    def behave(handler: Any, body: dict[str, Any], before: int) -> None:
        answer = {"choices": [{"message": {"content": f"I take [{len(body['messages']) - 1} 1]"}}]}
        handler.answer(answer, statuses.pop(0) if statuses else 200)

    with serving(behave) as server:
        env, task = first("Nim", opponent=server.url, model="stub", seat=1)
        assert "Player 0 removes 1 from pile 0" in env.reset(task).text
        assert "Player 0 removes 1 from pile 2" in env.step("[1 1]").observation.text
        state, asked = env.snapshot(), len(server.seen)
        assert "Player 0 removes 1 from pile 2" in TextArenaEnv("Nim", opponent=server.url, seat=1).restore(state).text
        assert len(server.seen) == asked  # what was said is not asked for again
        path, body, _ = server.seen[-1]
        assert path == "/v1/chat/completions" and body["model"] == "stub"
        assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
        statuses.append(400)
        with pytest.raises(TurnwiseError, match="opponent's server failed: HTTP 400"):
            env.step("[1 1]")


def test_a_game_that_breaks_ends_the_attempt_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    env, task = first("Nim", seat=0)
    env.reset(task)
    playing = env._playing
    assert playing is not None
    monkeypatch.setattr(playing.match.env, "step", lambda action: 1 / 0)
    answer = env.step("[0 1]")
    assert answer.done and not answer.success and "ZeroDivisionError" in answer.info["reason"]
    assert env.reset(task).actions


def test_several_games_take_turns() -> None:
    tasks = tw.tasks("textarena", split="valid", n=4, game=["Nim", "TowerOfHanoi"])
    assert [task.data["task_type"] for task in tasks] == ["Nim", "TowerOfHanoi"] * 2
    assert not {task.data["number"] for task in tasks} & {task.data["number"] for task in tw.tasks("textarena", split="train", n=9)}
