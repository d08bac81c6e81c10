"""Games of TextWorld, made on demand by the real package: the same in every process, made once, won by the expert."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from needing import ready

import turnwise as tw
from turnwise_envs.textworld import games as textworld_games
from turnwise_envs.textworld.env import TextWorldEnv
from turnwise_envs.textworld.games import Cache, Wanted, make, make_ahead

ready("textworld")

KINDS = [Wanted("coin", 105, 8), Wanted("treasure", 6, 1), Wanted("cooking", 4, 0)]
DIGESTS = "import sys; sys.path[:0] = sys.argv[1:]; from test_textworld import KINDS, digest; print(*map(digest, KINDS))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all tests share, so that each game is made once."""
    return tmp_path_factory.mktemp("games")


def digest(game: Wanted) -> str:
    return blake2b(json.dumps(make(game), sort_keys=True).encode(), digest_size=8).hexdigest()


def test_a_game_is_the_same_in_every_process_and_global_generators_are_left_alone() -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    here = [digest(game) for game in KINDS]
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DIGESTS, str(ROOT / "tests" / "support"), str(ROOT / "tests"), str(ROOT / "tests" / "envs_package")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.stdout.split() == here, done.stderr


SMALL = {"recipe": 2, "take": 2, "go": 1, "cut": True, "drop": True}  # a small inventory: won by the walkthrough


@pytest.mark.parametrize(
    ("kind", "level", "knobs"),
    [("coin", 5, None), ("coin", 205, None), ("treasure", 12, None), ("cooking", 5, None), ("simple", 2, None), ("cooking", None, SMALL)],
)
def test_the_expert_wins(kind: str, level: int | None, knobs: dict[str, Any] | None, folder: Path) -> None:
    env = TextWorldEnv(game=kind, levels=level, knobs=knobs, cache=folder)
    task = env.tasks("valid", n=1)[0]
    first = env.reset(task)
    assert first.text.lower().startswith(("your task is", "you")) and first.actions and isinstance(first.anchor, bytes)
    rewards, end = [], None
    while (action := env.expert_action()) is not None:
        end = env.step(action)
        rewards.append(end.reward)
    assert end is not None and end.success and sum(rewards) == pytest.approx(1.0)


def test_equal_states_have_equal_anchors_though_the_text_differs(folder: Path) -> None:
    env = TextWorldEnv(game="cooking", levels=2, cache=folder)
    first = env.reset(env.tasks("train", n=1)[0])
    opened = env.step("open fridge").observation
    shut = env.step("close fridge").observation
    assert first.key == shut.key != opened.key and first.text != shut.text
    assert "cookbook" in env.step("examine cookbook").observation.text and env.step("xyzzy").observation.text.startswith(
        "You cannot do that"
    )


def test_games_are_made_ahead_by_several_processes_and_then_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    games = [Wanted("coin", 5, seed) for seed in range(3)]
    told: list[str] = []
    make_ahead([*games, *games], workers=2, folder=tmp_path, tell=told.append)
    assert told[-1] == "6 of 6: coin/5/2"
    monkeypatch.setattr(textworld_games, "make", None)
    assert [Cache(tmp_path).get(game)["version"] for game in games]
    env = TextWorldEnv(game="coin", levels=5, cache=tmp_path)
    assert env.reset(games[2].task("train")).text


def test_a_description_in_a_folder_of_your_own_is_still_played(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(Cache(folder).get(KINDS[1])))
    env: Any = tw.make("textworld", games=str(tmp_path / "one.json"))
    first = env.reset(env.tasks("train")[0])
    assert "at(" in first.text
    end: Any = None
    while (action := env.expert_action()) is not None:
        end = env.step(action)
    assert end.success
