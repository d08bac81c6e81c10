"""MiniHack and NetHack: the describer alone, then the environments on the real packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise_envs.minihack import tasks, words
from turnwise_envs.minihack.explore import Explorer, wander

packages = pytest.mark.skipif(
    find_spec("nle") is None or find_spec("minihack") is None, reason="needs nle and minihack: pip install minihack nle"
)
NAMES = {".": "floor of a room", "|": "wall", "-": "wall", "+": "closed door", ">": "staircase down", "@": "human rogue called Agent"}
NAMES |= {"#": "corridor", "}": "molten lava", "r": "sewer rat", "^": "arrow trap"}
WAYS = {way: place for place, way in enumerate(words.NEIGHBOURS)}


def screen(*rows: str, message: str = "", **inventory: str) -> dict[str, Any]:
    """What nle would show of a small map."""
    chars = np.full((21, 79), 32, np.uint8)
    told = np.zeros((21, 79, 80), np.uint8)
    numbers = np.zeros(27, np.int64)
    numbers[[words.HP, words.HP_MAX, words.LEVEL, words.ARMOUR]] = 9, 12, 1, 7
    for y, row in enumerate(rows):
        for x, letter in enumerate(row):
            chars[y, x] = ord(letter)
            name = NAMES.get(letter, "").encode()
            told[y, x, : len(name)] = list(name)
            if letter == "@":
                numbers[[words.X, words.Y]] = x, y
    strings, letters = np.zeros((55, 80), np.uint8), np.zeros(55, np.uint8)
    for place, (letter, name) in enumerate(inventory.items()):
        letters[place], strings[place, : len(name)] = ord(letter), list(name.encode())
    said = np.zeros(256, np.uint8)
    said[: len(message)] = list(message.encode())
    shown = {"chars": chars, "glyphs": chars.astype(np.int16), "screen_descriptions": told, "blstats": numbers, "message": said}
    return {**shown, "inv_strs": strings, "inv_letters": letters}


# -- without the packages -----------------------------------------------------------------------------------------------------------------


def test_the_screen_is_described_in_steps_from_the_hero() -> None:
    seen = screen("-----", "|@..+", "|..>|", "-----", message="You hear a bell.", a="a club", f="3 apples")
    assert words.described(seen).splitlines() == [
        "You hear a bell.",
        "You see:",
        "staircase down 1 step south and 2 steps east",
        "closed door 3 steps east",
        "Next to you: wall north, northeast, southwest, west, northwest; floor east, southeast, south.",
        "HP 9 of 12, level 1, armour class 7.",
        "You have:",
        "a: a club",
        "f: 3 apples",
    ]
    assert "|@..+\n|..>|" in words.described(seen, "map") and "You see" not in words.described(seen, "map")


def test_many_things_of_one_kind_are_counted() -> None:
    text = words.described(screen("@}}}}}"))
    assert text.count("molten lava ") - text.count("Next to you: molten lava ") - text.count("; molten lava ") == 3
    assert "2 more: molten lava" in text


def test_the_letters_of_a_question_are_read() -> None:
    assert words.choices("What do you want to eat? [ac-e or ?*]") == ("a", "c", "d", "e")
    assert words.choices("You see here [nothing].") == ()


def test_the_key_ignores_score_and_time_and_notices_everything_else() -> None:
    one, two, three = screen("@."), screen("@."), screen(".@")
    two["blstats"][list(words.COUNTERS)] = 77
    assert words.key(one, False) == words.key(two, False) != words.key(three, False)
    assert words.key(screen("@.", message="Really?"), True) != words.key(one, True)
    assert words.key(screen("@.", message="Ouch."), False) == words.key(one, False)


def test_the_explorer_takes_the_shortest_way_and_keeps_off_lava_and_traps() -> None:
    assert Explorer().act(screen("|@.>|"), WAYS) == "east"
    assert Explorer().act(screen("|@^>|", "|...|"), WAYS) == "southeast"
    assert Explorer().act(screen("|@r.>|"), WAYS) == "east"  # it fights
    assert Explorer().act(screen("-----", "|@}>|", "-----"), WAYS) is None
    assert wander(screen("|@...|", "|...>|"), WAYS, 0) == "southeast"


def test_a_move_that_leads_nowhere_is_given_up() -> None:
    explorer, seen = Explorer(), screen("|@.>|", "|...|")
    assert [explorer.act(seen, WAYS) for _ in range(5)][-1] != "east"


# -- on the packages ----------------------------------------------------------------------------------------------------------------------


@packages
def test_the_explorer_finds_the_stairs() -> None:
    env = tw.make("minihack", levels=["Room-Random-15x15", "MazeWalk-Mapped-9x9", "MultiRoom-N2-Locked"])
    won = 0
    for task in env.tasks("valid", 6):
        env.reset(task)
        for _ in range(env.max_turns):
            if (action := env.expert_action()) is None or (last := env.step(action)).done:
                won += action is not None and last.success
                break
    assert won >= 5


@packages
def test_a_question_is_answered_with_a_letter() -> None:
    env = tw.make("minihack", levels="Eat-Fixed", show="both")
    env.reset(env.tasks("train", 1)[0])
    asked = env.step("eat").observation
    assert "What do you want to eat?" in asked.text or "You don't have anything to eat" in asked.text
    asked = env.step("wield").observation
    assert asked.actions is not None and "a" in asked.actions
    assert "club" in env.step("a").observation.text
    wrong = env.step("import os")
    assert not wrong.info["understood"] and wrong.observation.text.startswith("That is not an action here.")
    assert env.step("!").info["understood"] is False  # the key that asks NetHack for a shell


@packages
def test_all_tasks_of_the_packages_are_known() -> None:
    assert len(tasks.known(False)) == 146 and len(tasks.known(True)) == 8


@packages
def test_minihack_is_described_by_the_adapter_and_repeats() -> None:
    env = tw.make("gymnasium", id="MiniHack-Room-Random-5x5-v0")
    first = env.reset(Task("3"))
    assert first.text.startswith("Your task is: reach the staircase down\n") and "\nYou see:\nstaircase down " in first.text
    assert first.actions is not None and set(first.actions) == set(words.NEIGHBOURS)
    env.step("north")
    assert env.reset(Task("3")).text == first.text


@packages
def test_nothing_is_left_after_close() -> None:
    env = tw.make("minihack", levels="Room-5x5")
    env.reset(env.tasks("train", 1)[0])
    folder = env._game.nethack._vardir
    env.close()
    assert not Path(folder).exists()
