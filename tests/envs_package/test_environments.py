"""What all environments of the package have in common: the contract, splits that share no task, and options that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from needing import OPENENV_PYTHON, openenv_server, ready

import turnwise as tw
from turnwise.envs.check import check
from turnwise.util.errors import TurnwiseError

LETTERS = f"{Path(__file__).with_name('verifiers_letters.py')}:load_environment"
CONTRACT: list[tuple[str, int, int, dict[str, Any]]] = [  # the environment, episodes, turns, its options
    ("babyai", 6, 25, {"levels": ["GoToSeqS5R2", "MoveTwoAcrossS5N2", "KeyInBox", "PutNextS5N2Carrying", "UnlockLocal", "SynthSeq"]}),
    ("babyai", 1, 25, {"levels": "OpenDoorsOrderN2", "view": "room"}),
    ("bfcl", 2, 8, {}),
    ("gymnasium", 2, 20, {"id": "MiniGrid-Empty-5x5-v0"}),
    ("minihack", 3, 20, {"levels": ["Room-Monster-5x5", "MultiRoom-N2", "Freeze-Wand-Restricted"]}),
    ("miniwob", 3, 6, {"kinds": ["click-menu", "enter-text", "use-autocomplete"]}),
    ("nethack", 2, 30, {}),
    ("reasoning", 5, 50, {"generators": ["chain_sum", "ransom_note", "rubiks_cube"], "tries": 3}),
    ("scienceworld", 4, 4, {"tasks": ["find-living-thing", "lifespan-shortest-lived", "grow-plant"], "anchor": "state"}),
    ("shell", 2, 10, {"families": ["links", "git_commit"], "levels": 1}),
    ("tau2", 5, 50, {}),
    ("tau2", 5, 50, {"suggest": True, "domain": "telecom"}),
    ("textarena", 4, 6, {"game": ["PigDice", "KuhnPoker", "TicTacToe", "Minesweeper"]}),
    ("textworld", 5, 15, {}),
    ("textworld-express", 5, 15, {}),
    ("verifiers", 5, 50, {"environment": LETTERS}),
]


@pytest.mark.parametrize(("name", "episodes", "turns", "options"), CONTRACT)
def test_the_contract_is_kept(name: str, episodes: int, turns: int, options: dict[str, Any], tmp_path: Path) -> None:
    ready(name)
    cached = {"cache": str(tmp_path)} if name == "textworld" else {}
    report = check(name, episodes=episodes, turns=turns, **options, **cached)
    assert report.ok, report.problems
    assert report.snapshot_bytes is None or report.snapshot_bytes < 64 * 1024


@pytest.mark.skipif(not OPENENV_PYTHON, reason="needs a Python with openenv, named by OPENENV_PYTHON: make test-envs makes one")
def test_a_server_of_openenv_keeps_the_contract() -> None:
    with openenv_server() as url:
        report = check("openenv", url=url, turns=10)
        assert [len(tw.tasks("openenv", split, url=url)) for split in ("train", "valid")] == [6, 4], "its own lists"
    assert report.ok, report.problems


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("babyai", {"levels": "OpenDoorsOrderN2Debug"}, "cannot be won.*Use OpenDoorsOrderN2 "),
        ("babyai", {"levels": "GoToLocl"}, "GoToLocal"),
        ("bfcl", {"categories": "bose"}, "base"),
        ("bfcl", {"classes": ["TradingBots"]}, "TradingBot"),
        ("bfcl", {"tools": "shorts"}, "short"),
        ("minihack", {"levels": "MiniHack-Boxoban-Hard-v0"}, "Boxoban-Hard is left out: its levels are not part"),
        ("minihack", {"levels": "Room-Rndom-5x5"}, "Room-Random-5x5"),
        ("miniwob", {"kinds": "click-buton"}, "Did you mean 'click-button'"),
        ("miniwob", {"kinds": ["simon-says"]}, "not offered: the buttons to press are shown as an animation"),
        ("miniwob", {"kinds": []}, "at least one kind"),
        ("miniwob", {"view": "smell"}, "unknown view"),
        ("reasoning", {"generators": "mazes"}, "Did you mean 'maze'"),
        ("reasoning", {"generators": "codeio"}, "runs programs"),
        ("reasoning", {"generators": []}, "empty list"),
        ("reasoning", {"tries": 0}, "tries is an integer from 1"),
        ("reasoning", {"level": -1}, "level is an integer from 0"),
        ("reasoning", {"config": {"maze": {"no_such": 1}}}, "settings of maze are not valid"),
        ("reasoning", {"config": {"mze": {}}}, "Did you mean 'maze'"),
        ("reasoning", {"generators": "gcd", "config": {"gcd": {"min_numbers": -3}}}, "settings of gcd are not valid"),
        ("shell", {"families": "renam"}, "Did you mean 'rename'|rename"),
        ("shell", {"families": []}, "families is empty"),
        ("shell", {"levels": 4}, "levels are some of 1, 2, 3"),
        ("shell", {"ends": "never"}, "submit"),
        ("shell", {"seconds": 0}, "seconds must be positive"),
        ("shell", {"sandbox": "docker"}, "sandbox of the shell environment: 'docker'"),
        ("tau2", {"domain": "banking"}, "domain"),
        ("textarena", {"game": []}, "game is empty"),
        ("textarena", {"game": "Nim", "players": 3}, "2 players, not 3"),
        ("textarena", {"opponent": "self", "eval_opponent": "self"}, "fixed opponent"),
        ("textarena", {"noise": 2.0}, "noise is from 0 to 1"),
        ("textarena", {"rewards": "points"}, "unit"),
        ("textworld-express", {"params": {"numLocations": 2}}, "name it"),
        ("verifiers", {"environment": LETTERS.replace("load_environment", "load_single")}, "makes str, which is not a MultiTurnEnv"),
        ("verifiers", {"environment": LETTERS.replace("load_environment", "nothing_here")}, "has no function nothing_here"),
        ("verifiers", {"environment": "no_such_environment_anywhere"}, "cannot be loaded"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], words: str) -> None:
    ready(name)
    with pytest.raises(TurnwiseError, match=words):
        tw.make(name, **options)
