"""Playing by hand: through a pipe, with hints and scores, and nothing that an environment writes can touch the terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import turnwise.envs.registry as registry
from turnwise.cli.app import app
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs import EpisodeOver, Observation, Transition, register
from turnwise.envs.play import find_task, play
from turnwise.util.errors import TurnwiseError

DOORS = f"{Path(__file__)}:Doors"
SLOW = 60.0


class Doors:
    """Open three doors in the right order."""

    max_turns = 6
    ORDER = ("open red door", "open blue door", "open green door")

    def __init__(self, decoration: str = ""):
        self.decoration, self.opened = decoration, len(self.ORDER)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.opened = 0
        return self._see(f"Three doors. Task {task.id}.")

    def step(self, action: str) -> Transition:
        if self.opened >= len(self.ORDER):
            raise EpisodeOver("reset first")
        right = action == self.ORDER[self.opened]
        self.opened += right
        done = self.opened == len(self.ORDER)
        return Transition(self._see("It opens." if right else f"Nothing happens after {action!r}."), float(done), done, done)

    def _see(self, text: str) -> Observation:
        return Observation(self.decoration + text, actions=(*self.ORDER, "knock"))


class AdvisedDoors(Doors):
    def expert_action(self) -> str:
        return self.ORDER[self.opened]


class PlannedDoors(Doors):
    def tasks(self, split: str) -> TaskSet:
        return TaskSet([Task(f"{split}/house {i}", split) for i in range(4)], split)

    def expert(self, task: Task) -> list[str]:
        return list(self.ORDER)


@pytest.fixture(autouse=True)
def doors() -> Iterator[None]:
    known = {"doors": Doors, "advised-doors": AdvisedDoors, "planned-doors": PlannedDoors}
    for name, factory in known.items():
        register(name, factory)
    yield
    for name in known:
        registry.unregister(name)


def played(*arguments: str, lines: str = "") -> Result:
    return CliRunner().invoke(app, ["play", *arguments], input=lines)


def test_a_piped_game_is_won_and_scored() -> None:
    shown = played("advised-doors", lines="open red door\nknock\nopen blue door\nopen green door\nnever read\n")
    assert shown.exit_code == 0
    assert "> open red door\n\nIt opens." in shown.output
    assert "You have done it. Turns: 4 of 6, reward: 1, the expert needs 3." in shown.output
    assert "never read" not in shown.output


def test_the_expert_hints_from_wherever_the_player_is_and_a_plan_as_long_as_it_was_followed() -> None:
    shown = played("advised-doors", lines="hint\nopen red door\nknock\nhint\nquit\n").output
    assert "The expert would: open red door" in shown and "The expert would: open blue door" in shown
    assert "The task is not done. Turns: 2 of 6" in shown
    shown = played("planned-doors", lines="open red door\nhint\nknock\nhint\nquit\n").output
    assert shown.count("The expert would: open blue door") == 1 and "No hint here." in shown
    shown = played("doors", lines="hint\nactions\n").output
    assert "No hint here." in shown and "knock" in shown and "the expert needs" not in shown


def test_the_expert_can_be_watched() -> None:
    shown = played("planned-doors", "--watch")
    assert "> open green door" in shown.output
    assert "You have done it. Turns: 3 of 6" in shown.output
    refused = played("doors", "--watch")
    assert isinstance(refused.exception, TurnwiseError)


def test_the_game_ends_with_the_turns_and_an_empty_line_is_none() -> None:
    assert "That was the last of 6 turns." in played("doors", lines="knock\n" * 9).output
    assert "That was the last of 2 turns." in played("doors", "--max-turns", "2", lines="knock\n" * 9).output
    assert "Turns: 1 of" in played("doors", lines="\n  \nknock\n\n").output


def test_a_task_is_found_by_id_in_any_split_or_by_its_place() -> None:
    assert find_task("doors", "17").split == "train"
    assert find_task("doors", "18").split == "valid"
    assert find_task("planned-doors", "valid/house 2").id == "valid/house 2"
    assert find_task("planned-doors", "2").id == "train/house 2"
    assert find_task("planned-doors", "2", split="test").id == "test/house 2"
    assert "Task 11." in played("doors", "--seed", "9").output
    assert "Task 100001." in played("doors", "--seed", "80001").output


def test_an_unknown_task_names_the_nearest_id() -> None:
    with pytest.raises(TurnwiseError, match="The nearest id is 'valid/house 3'"):
        find_task("planned-doors", "valid/hose 3")
    with pytest.raises(TurnwiseError, match="has 4 tasks, counted from 0: there is no task 4"):
        find_task("planned-doors", "4")


def test_words_that_the_environment_knows_are_its_own() -> None:
    class Quitting(Doors):
        def _see(self, text: str) -> Observation:
            return Observation(text, actions=("quit",))

    register("quitting-doors", Quitting)
    try:
        shown = played("quitting-doors", lines="quit\n:quit\n")
        assert "Nothing happens after 'quit'." in shown.output
        assert "Turns: 1 of" in shown.output
    finally:
        registry.unregister("quitting-doors")


HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 back\x08\x08 csi\x9b2J \u202eevil\u202c null\x00 lone\ud800 [bold]not markup[/bold] "
)


def test_nothing_but_text_reaches_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["knock", "\x1b[2J", None])
    play("doors", read=lambda: next(lines), decoration=HOSTILE)
    shown = capsys.readouterr().out
    assert not [c for c in shown if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u202c\ud800")]
    assert "[bold]not markup[/bold]" in shown


def test_a_terminal_that_knows_only_ascii_gets_question_marks() -> None:
    command = [sys.executable, "-c", "from turnwise.cli.app import main; main()", "play", DOORS, "-o", "decoration=Ärger "]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, input="quit\n", capture_output=True, text=True, env=environment, check=True)
    assert "?rger Three doors." in done.stdout


def test_a_game_is_played_on_a_terminal() -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-c", "from turnwise.cli.app import main; main()", "play", DOORS]
    game = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "dumb"}, close_fds=True)
    os.close(side)
    try:
        seen = read_until(main, "\n> ", "")
        os.write(main, b"open red door\n")
        seen = read_until(main, "It opens.", seen)
        os.write(main, b"quit\n")
        assert "The task is not done. Turns: 1 of 6" in read_until(main, "Turns: 1", seen)
    finally:
        game.kill()
        game.wait()
        os.close(main)


def read_until(terminal: int, wanted: str, seen: str) -> str:
    deadline = time.monotonic() + SLOW
    while wanted not in seen.replace("\r", "") and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break
    assert wanted in seen.replace("\r", ""), seen
    return seen.replace("\r", "")
