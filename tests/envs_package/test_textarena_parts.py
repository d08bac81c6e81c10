"""What the textarena environment does without its package: the table of games, dice, experts, texts and messages."""

# ruff: noqa: NPY002
from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turnwise.util.errors import TurnwiseError
from turnwise_envs.textarena.dice import Dice
from turnwise_envs.textarena.match import canonical, shown
from turnwise_envs.textarena.moves import MOST, at_most, listed
from turnwise_envs.textarena.opponents import check_kind
from turnwise_envs.textarena.solvers import EXPERTS, RULES
from turnwise_envs.textarena.table import find, games


def at(player: int = 0, **fields: Any) -> Any:
    state = fields.pop("state", {})
    return SimpleNamespace(state=SimpleNamespace(game_state=state, current_player_id=player), **fields)


def test_the_table_has_all_games_and_says_what_the_rest_needs() -> None:
    known = games()
    assert len(known) == 96 and sum(game.runs and not game.needs for game in known.values()) >= 69
    for game in known.values():
        assert game.ids and (game.runs or game.needs)
        assert not game.runs or game.players
    assert (known["TicTacToe"].players, known["Nim"].ids[0], known["Snake"].players[-1]) == ((2,), "Nim-v0", 8)


def test_games_are_found_by_family_and_by_id() -> None:
    assert find("Nim")[1] == find("Nim-v0-raw")[1] == "Nim-v0"
    assert find("ConnectFour-v0-large")[0].family == "ConnectFour"
    with pytest.raises(TurnwiseError, match="TicTacToe"):
        find("TicTacTo")
    with pytest.raises(TurnwiseError, match=r"does not run.*key of a service"):
        find("Debate")


def test_opponents_are_checked_before_a_game_begins() -> None:
    check_kind("http://127.0.0.1:1/v1", "opponent", "Nim", True)
    check_kind("expert", "opponent", "Sudoku", False)
    with pytest.raises(TurnwiseError, match="random"):
        check_kind("randon", "opponent", "Nim", True)
    with pytest.raises(TurnwiseError, match=r"Poker has none. There is one for: .*Nim"):
        check_kind("expert", "opponent", "Poker", True)


def test_dice_change_nothing_outside_and_continue_where_they_were() -> None:
    random.seed(5), np.random.seed(5)
    before, other = random.getstate(), np.random.get_state()[1].tolist()
    dice = Dice(1)
    with dice.held():
        first = [random.random(), float(np.random.random())]
    with dice.held(keep=False):
        probed = random.random()
    with dice.held():
        second = random.random()
    assert random.getstate() == before and np.random.get_state()[1].tolist() == other
    assert probed == second != first[0]
    alone = Dice(1)
    with alone.held():
        assert [random.random(), float(np.random.random())] == first and random.random() == second
    with pytest.raises(ValueError), dice.held():
        random.random()
        raise ValueError
    assert random.getstate() == before


def test_messages_become_one_text_with_the_task_and_the_last_board() -> None:
    kind = SimpleNamespace
    messages = [
        (-1, "You play.\nTwo lines.", kind(name="PROMPT")),
        (0, "[1]", kind(name="PLAYER_ACTION")),
        (1, "[2]", kind(name="PLAYER_ACTION")),
        (-1, "old board", kind(name="GAME_BOARD")),
        (-1, "Player 1 took 2.", kind(name="GAME_ACTION_DESCRIPTION")),
        (-1, "new board", kind(name="GAME_BOARD")),
    ]
    assert shown(messages, 0, talk=False) == "Your task is: You play. Two lines.\nPlayer 1 took 2.\nnew board"
    assert shown(messages, 0, talk=True, goal="Your task is: win.").splitlines()[:2] == ["Your task is: win.", "Player 1: [2]"]


def test_states_are_the_same_in_any_order_and_without_counters() -> None:
    one = {"b": {3, 1}, "a": [1, np.array([2])], "move_count": 4, "history": [("x", 1), ("y", 2)]}
    two = {"history": [("y", 2), ("x", 1)], "a": [1, np.array([2])], "b": {1, 3}, "move_count": 9}
    assert canonical(one) == canonical(two) != canonical(two | {"a": [1]})


def test_moves_are_read_from_the_last_listing() -> None:
    text = "Available Moves: '[0]', '[1]'\nYou moved.\nAvailable Moves: '[1]', '[2]'"
    assert listed(None, text) == ["[1]", "[2]"] and listed(None, "no list [3]") == []
    many = at_most(f"[{k}]" for k in range(10 * MOST))
    assert len(many) == MOST and many[0] == "[0]" and many[-1] == f"[{10 * MOST - 10}]"


def test_the_expert_of_tic_tac_toe_never_loses_and_wins_where_it_can() -> None:
    """Against every reply, from both seats."""

    def lost(board: str, mover: int, own: int) -> bool:
        lines = [board[a : a + 3] for a in (0, 3, 6)] + [board[a::3] for a in range(3)] + [board[::4], board[2:7:2]]
        if "OX"[1 - own] * 3 in lines:
            return True
        if "OX"[own] * 3 in lines or " " not in board:
            return False
        if mover == own:
            rows = [[cell.strip() for cell in board[a : a + 3]] for a in (0, 3, 6)]
            cells = [int((EXPERTS["TicTacToe"](at(own, state={"board": rows})) or "").strip("[]"))]
        else:
            cells = [cell for cell in range(9) if board[cell] == " "]
        return any(lost(board[:cell] + "OX"[mover] + board[cell + 1 :], 1 - mover, own) for cell in cells)

    assert not lost(" " * 9, 0, 0) and not lost(" " * 9, 0, 1)
    assert EXPERTS["TicTacToe"](at(0, state={"board": [["O", "O", ""], ["X", "X", ""], ["", "", ""]]})) == "[2]"
    assert RULES["TicTacToe"](at(1, state={"board": [["O", "O", ""], ["X", "", ""], ["", "", ""]]})) == "[2]"


def test_connect_four_wins_and_blocks() -> None:
    rows = [list(".......") for _ in range(5)] + [list("XXX.OO.")]
    assert EXPERTS["ConnectFour"](at(0, state={"board": rows})) == "[col 3]" == EXPERTS["ConnectFour"](at(1, state={"board": rows}))
