"""Watching an agent play: everything it saw and did is told, in plain text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli
from rich.console import Console
from train_cases import BANDIT, start
from typer.testing import CliRunner

from turnwise import TurnwiseError
from turnwise.cli.app import app
from turnwise.cli.watch import Teller, watch
from turnwise.data.rollouts import Trajectory, Turn

COUNTER = f"{ROOT / 'tests' / 'support' / 'counter_env.py'}:Counter"
SMALL = {"size": "tiny", "task_types": ["pick_and_place_simple"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("runs"), iterations=1, **{"model.tiny.max_length": 512}).folder


def told(*arguments: Any, **settings: Any) -> tuple[str, list[Any]]:
    out = io.StringIO()
    trajectories = watch(*arguments, console=Console(file=out, width=80), **settings)
    return out.getvalue(), trajectories


def test_the_expert_is_watched_from_task_to_success() -> None:
    text, [trajectory] = told("expert", "household", options=SMALL, split="valid")
    assert trajectory.success and "Your task is to" in text and "(valid), seed 0, played by expert" in text
    assert all(f"> {turn.action}" in text for turn in trajectory.turns)
    assert "  reward 1" in text and f"Done. Turns: {len(trajectory.turns)}, reward: 1." in text


def test_a_run_plays_its_own_environment_where_none_is_named(run: Path) -> None:
    text, [trajectory] = told(str(run), temperature=0.0)
    assert f"{BANDIT}, task 8 (valid)" in text and "pick left or right again" in text
    assert len(trajectory.turns) == 2
    again, [same] = told(str(run), temperature=0.0)
    assert again == text and [turn.action for turn in same.turns] == [turn.action for turn in trajectory.turns]


def test_a_model_folder_plays_the_environment_that_is_named(run: Path) -> None:
    text, trajectories = told(str(run / "model"), BANDIT, n=2, max_turns=1)
    assert [len(trajectory.turns) for trajectory in trajectories] == [1, 1] and text.count("Not done (step limit)") == 2
    with pytest.raises(TurnwiseError, match="say which environment"):
        watch(str(run / "model"))


def test_a_game_that_was_lost_is_not_called_done() -> None:
    text, attempts = told("random", "blackjack", n=12)
    lost = sum(not attempt.success for attempt in attempts)
    assert 0 < lost < 12 and text.count("Not done (it ended unsolved).") == lost and "(done)" not in text


def test_tasks_in_a_row_or_attempts_at_one(run: Path) -> None:
    text, _ = told(str(run), n=3, seed=1, split="train")
    assert [line.split("task ")[1].split()[0] for line in text.splitlines() if "played by" in line] == ["1", "2", "3"]
    _, attempts = told("random", COUNTER, task="5", n=4)
    assert {attempt.task for attempt in attempts} == {"5"} and len({tuple(t.action for t in a.turns) for a in attempts}) > 1


def test_what_a_model_writes_is_neither_markup_nor_a_terminal_sequence() -> None:
    out = io.StringIO()
    teller = Teller(Console(file=out, force_terminal=True, color_system="truecolor", width=80))
    turn = Turn(None, 0.5, True, thought="[bold red]hot[/] \x1b[2J", action="[link=x]go[/link] :smile:", response="")
    turn.observation = "[/nothing] \x1b]0;title\x07 here"
    teller.turn(Trajectory(0, 0, turns=[turn]))
    text = out.getvalue()
    assert "[bold red]hot[/]" in text and "[link=x]go[/link] :smile:" in text and "[/nothing]" in text
    assert "\x1b[2J" not in text and "\x1b]" not in text


def test_the_command_line_watches_in_plain_lines(run: Path, here: Cli) -> None:
    done = here("play", "--agent", str(run), "--n", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("played by") == 2 and "\x1b" not in done.stdout
    shown = CliRunner().invoke(app, ["play", COUNTER, "--agent", "random", "--max-turns", "2"])
    assert shown.exit_code == 0 and "Turns: 2" in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["play"], "nothing to play"),
        (["play", "--agent", "expert"], "the expert agent needs an environment"),
        (["play", COUNTER, "--agent", "nobody"], "no such folder. What can play"),
        (["play", COUNTER, "--agent", "expert"], "no expert"),
        (["play", "household", "--agent", "random", "--split", "vald"], "vald"),
    ],
)
def test_a_wrong_request_is_explained(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(app, arguments)
    assert isinstance(shown.exception, TurnwiseError) and words in str(shown.exception)
