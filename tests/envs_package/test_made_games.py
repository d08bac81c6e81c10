"""What the adapters of text games do without their packages: the cache of made games, their words, and the wire to Java."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError
from turnwise_envs.scienceworld.simulator import ordered
from turnwise_envs.shared.curious import Curious
from turnwise_envs.shared.java_wire import BETWEEN, JavaError, Ref, Wire, part, value
from turnwise_envs.textworld.env import chosen, generated
from turnwise_envs.textworld.games import Cache, Wanted, wanted
from turnwise_envs.textworld.words import view

GAME = Wanted("coin", 5, 17)


def test_a_generated_task_says_what_it_is_and_splits_share_no_seed() -> None:
    games = chosen(("coin", "cooking"), None, None, "brief")
    train, valid = generated(games, "train", 60), generated(games, "valid", 60)
    assert [task.id for task in train][:4] == ["coin/5/0", "coin/105/0", "coin/205/0", "cooking/1/0"]
    assert valid[0].id == "coin/5/8" and wanted(valid[0]) == Wanted("coin", 5, 8)
    assert not train.overlap(valid) and not {task.data["seed"] for task in train} & {task.data["seed"] for task in valid}
    assert all(wanted(task).split == "valid" for task in valid)


def test_knobs_of_cooking_name_the_task() -> None:
    (game,) = chosen("cooking", None, {"recipe": 2, "take": 1, "go": 6, "cut": True}, "brief")
    assert wanted(game.task("train")) == game and game.name == "cooking/cut1-go6-recipe2-take1/0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("coins", None, None), "Did you mean 'coin'"),
        (("treasure", 31, None), "levels 1 to 30"),
        ((None, 3, None), "name it"),
        (("coin", None, {"go": 6}), "only cooking has knobs"),
        (("cooking", None, {"gone": 6}), "Did you mean 'go'"),
        (("cooking", None, {"go": 7}), "1, 6, 9 or 12"),
        (("cooking", None, {"recipe": 1, "take": 2}), "at most all"),
    ],
)
def test_wrong_options_of_generated_games_are_errors(options: Any, words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        chosen(*options, "brief")


@pytest.mark.parametrize("data", [{}, {"kind": "coin", "level": 0, "seed": 1, "goal": "brief", "knobs": {}}, {"kind": "../x", "level": 1}])
def test_a_task_of_something_else_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(TurnwiseError, match="not a generated game"):
        wanted(Task("x", "train", data))


def test_a_game_is_made_once_though_many_ask_at_the_same_time(tmp_path: Path) -> None:
    made = []

    def making(game: Wanted) -> dict[str, Any]:
        made.append(game)
        return {"seed": game.seed}

    with ThreadPoolExecutor(8) as pool:  # each opens its own lock, as processes do
        found = list(pool.map(lambda _: Cache(tmp_path).get(GAME, making), range(16)))
    assert found == [{"seed": 17}] * 16 and made == [GAME]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"x", b"turnwise.textworld 1 0123\nxx", None])
def test_a_damaged_game_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    cache = Cache(tmp_path)
    cache.get(GAME, lambda game: {"made": 1})
    (file,) = tmp_path.rglob("*.game")
    file.write_bytes(file.read_bytes()[:-3] if damage is None else damage)
    assert cache.get(GAME, lambda game: {"made": 2}) == {"made": 2}
    assert cache.get(GAME, lambda game: {"made": 3}) == {"made": 2}


def test_a_making_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Cache(tmp_path).get(GAME, lambda game: {"made": 1 / 0})
    assert Cache(tmp_path).get(GAME, lambda game: {"made": 2}) == {"made": 2}


def test_the_cache_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for seed in range(3):
        cache.get(Wanted("coin", 5, seed), lambda game: {"made": game.seed})
        for file in tmp_path.rglob(f"{seed}-*.game"):
            os.utime(file, (seed, seed))
    cache.limit = sum(file.stat().st_size for file in tmp_path.rglob("*.game"))
    cache.get(Wanted("coin", 5, 9), lambda game: {"made": game.seed})
    assert sorted(file.name for file in tmp_path.rglob("*.game")) == ["1-brief.game", "2-brief.game", "9-brief.game"]
    assert cache.clear() == 3 and not list(tmp_path.rglob("*.game"))


def fact(name: str, *things: str) -> Any:
    return SimpleNamespace(name=name, arguments=[SimpleNamespace(name=thing) for thing in things])


def test_a_room_is_told_in_plain_sentences_and_hides_what_is_closed() -> None:
    names = {
        "r0": "kitchen",
        "r1": "hall",
        "c0": "fridge",
        "s0": "counter",
        "f0": "carrot",
        "o0": "apple",
        "d0": "wooden door",
        "f1": "egg",
    }
    facts = [fact("at", "P", "r0"), fact("at", "c0", "r0"), fact("at", "s0", "r0"), fact("closed", "c0"), fact("in", "f0", "c0")]
    facts += [fact("raw", "f0"), fact("on", "o0", "s0"), fact("link", "r0", "d0", "r1"), fact("locked", "d0"), fact("north_of", "r1", "r0")]
    facts += [fact("in", "f1", "I"), fact("fried", "f1"), fact("sliced", "f1"), fact("edible", "f1")]
    told = "You are in the kitchen. You see a counter (on it: an apple) and a fridge (closed). Exits: north (a wooden door, locked)."
    assert view(facts, names) == f"{told} You carry a fried sliced egg."
    opened = [fact("open", "c0") if known.name == "closed" else known for known in reversed(facts)]
    assert "a fridge (open, in it: a raw carrot)" in view(opened, names)


def test_the_curious_rule_tries_everything_before_it_repeats_itself() -> None:
    rule, actions = Curious(), ("look", "go north", "take coin")
    assert [rule.choose("here", actions) for _ in range(4)] == ["go north", "take coin", "look", "go north"]
    assert rule.choose("there", actions) == "go north" and rule.choose("here", ()) is None


def test_actions_have_one_order_and_numbered_choices_are_in_that_of_numbers() -> None:
    assert ordered(["b", "a", "b"]) == ("a", "b")
    assert ordered(["10", "9", "0"]) == ("0", "9", "10")


def test_values_survive_the_wire() -> None:
    for text in ("plain", "two\nlines", "back\\slash\\n", "\r\n", ""):
        assert value(part(text)[:-1]) == text
    assert (part(3), part(2**40), part(True), part(Ref("o1"))) == ("i3\n", "L1099511627776\n", "bTrue\n", "ro1\n")
    assert (value("d0.5"), value("btrue"), value("lo3"), value("n"), value("v")) == (0.5, True, Ref("o3"), None, None)


@pytest.fixture
def answering() -> Iterator[Any]:
    """A server that takes one connection and gives one prepared answer per command."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve(answers: list[bytes]) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            for answer in answers:
                while (line := lines.readline()) and line not in (b"e\n", b"token\n"):
                    seen.append(line)
                connection.sendall(answer)
            if answers[-1] == b"":
                lines.readline()  # says nothing until the other side gives up

    def start(*answers: bytes) -> Wire:
        threading.Thread(target=serve, args=([b"!yv\n", *answers],), daemon=True).start()
        return Wire(server.getsockname()[1], "token", 5.0)

    yield start
    server.close()


def test_calls_lists_and_errors_come_over_the_wire(answering: Any) -> None:
    wire = answering(b"!ylo7\n", f"!ysa{BETWEEN}b\n".encode(), b"!yv\n", b"!xro9\n", b"!ysBad\\ntrace\n")
    assert wire.texts("o1", "names", seconds=5.0) == ["a", "b"]
    with pytest.raises(JavaError, match=r"^Bad$"):
        wire.call("o1", "step", "look", seconds=5.0)
    with pytest.raises((EOFError, OSError)):
        wire.call("o1", "step", "look", seconds=5.0)


def test_an_answer_that_does_not_come_is_a_timeout(answering: Any) -> None:
    wire = answering(b"")
    with pytest.raises(TimeoutError):
        wire.call("o1", "step", seconds=0.05)
    wire.close()
