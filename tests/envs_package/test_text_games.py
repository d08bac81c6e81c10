"""TextWorld and AppWorld through their adapters, with stand-ins that speak their interfaces."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver
from turnwise.envs.check import check
from turnwise.envs.registry import describe
from turnwise.util.errors import TurnwiseError, install_command
from turnwise_envs.appworld.env import code_of
from turnwise_envs.shared import java

STAND_INS = str(ROOT / "tests" / "envs_package" / "standins")
ADAPTERS = ("appworld", "gymnasium", "openenv", "scienceworld", "textworld", "textworld-express")


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-ins in place of the packages, here and in every process that is started; a `java` that nobody runs."""
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.delitem(sys.modules, "textworld", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", STAND_INS)


@pytest.fixture
def games(tmp_path: Path, stand_ins: None) -> Path:
    for name, word in {"a.z8": "light", "b.z8": "strike", "c.z8": "press", "a.json": "light"}.items():
        (tmp_path / "games").mkdir(exist_ok=True)
        (tmp_path / "games" / name).write_text(word)
    return tmp_path / "games"


@pytest.fixture
def data(tmp_path: Path, stand_ins: None) -> Path:
    folder = tmp_path / "data" / "datasets"
    folder.mkdir(parents=True)
    for number, split in enumerate(("train", "dev", "test_normal", "test_challenge")):
        (folder / f"{split}.txt").write_text(f"abc{number}_1\nabc{number}_2\n")
    return tmp_path


def test_the_listing_names_every_adapter_and_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    rows = {row["name"]: row for row in describe() if row["name"] in ADAPTERS}
    assert sorted(rows) == sorted(ADAPTERS)
    remedies = {need["what"]: need["remedy"] for row in rows.values() for need in row["needs"]}
    assert remedies["package gymnasium"] == install_command("gymnasium")
    for package, extra in {"textworld": "textworld", "scienceworld": "scienceworld", "websockets": "openenv"}.items():
        assert remedies[f"package {package}"] == install_command(extra, "turnwise-envs")
    assert any(need["what"] == "Java" and not need["present"] for need in rows["scienceworld"]["needs"])


def test_textworld_games_are_played_scored_and_kept_apart(games: Path) -> None:
    env: Any = tw.make("textworld", games=str(games))
    tasks = [task for split in ("train", "valid", "test") for task in env.tasks(split)]
    assert sorted(task.id for task in tasks) == ["a.z8", "b.z8", "c.z8"]
    task = next(task for task in tasks if task.id == "b.z8")
    first = env.reset(task)
    assert first.text == "Your task is: Light the lamp.\nA dark room with a lamp."
    assert first.key == "A dark room with a lamp."
    assert first.actions == ("look", "strike")
    half = env.step("look")
    assert (half.reward, half.done) == (0.25, False)
    assert env.expert_action() == "strike"
    end = env.step("  strike\n")
    assert (end.reward, end.done, end.success) == (0.75, True, True)
    with pytest.raises(EpisodeOver):
        env.step("look")


def test_textworld_options_turn_limit_reward_and_anchor(games: Path) -> None:
    env: Any = tw.make("textworld", games=str(games / "a.z8"), reward="won", anchor="state", max_turns=2)
    task = env.tasks("train")[0]
    assert isinstance(env.reset(task).anchor, bytes)
    assert env.step("look").reward == 0.0
    cut = env.step("look")
    assert cut.done and not cut.success and cut.info["truncated"]


def test_folders_named_after_splits_are_splits(games: Path) -> None:
    for split in ("train", "valid"):
        (games / split).mkdir()
        (games / split / f"{split}.z8").write_text("light")
    env: Any = tw.make("textworld", games=str(games))
    assert [task.id for task in env.tasks("valid")] == ["valid/valid.z8"]
    assert env.tasks("train").overlap(env.tasks("valid")) == []


def test_textworld_errors_say_what_is_wrong(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEXTWORLD_GAMES", raising=False)
    with pytest.raises(TurnwiseError, match="TEXTWORLD_GAMES"):
        tw.make("textworld", games=str(games / "nowhere"))
    with pytest.raises(TurnwiseError, match="not both"):
        tw.make("textworld", games=str(games), game="coin")
    (games / "old.ulx").write_text("x")
    with pytest.raises(TurnwiseError, match=r"cannot play .*old\.ulx: Glulx"):
        tw.make("textworld", games=str(games / "old.ulx")).reset(Task("old.ulx"))
    empty = games / "empty"
    empty.mkdir()
    with pytest.raises(TurnwiseError, match="there is no game"):
        tw.tasks("textworld", games=str(empty))


@pytest.mark.usefixtures("stand_ins")
def test_games_of_java_say_in_one_line_what_to_install_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(TurnwiseError, match=r"needs Java.*apt install default-jre-headless$") as caught:
        tw.make("textworld-express")
    assert "\n" not in str(caught.value)


def test_a_java_that_does_not_start_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("py4j")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'Could not reserve enough space' >&2\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TurnwiseError, match=r"^x: Java did not start, exit code 1 \(Could not reserve enough space\)\. Check") as told:
        java.Java("x", str(tmp_path / "x.jar"), (), {})
    assert "\n" not in str(told.value)


def test_appworld_runs_programs_and_scores_them_at_the_end(data: Path) -> None:
    env: Any = tw.make("appworld", root=str(data))
    try:
        task = env.tasks("dev")[1]
        first = env.reset(task)
        assert first.text == "Your task is: Tell the number of task abc1_2.\nYou act for Ada Byron (email ada@example.com, phone 12)."
        assert env.step("```python\nx = apis.supervisor.number()\nprint(x)\n```").observation.text == "2"
        assert "NameError" in env.step("print(y)").observation.text
        end = env.step("apis.supervisor.complete_task(answer=x)")
        assert (end.reward, end.done, end.success) == (1.0, True, True)
        with pytest.raises(EpisodeOver):
            env.step("1")
    finally:
        env.close()


def test_appworld_counts_tests_and_evaluates_when_the_turns_are_over(data: Path) -> None:
    env: Any = tw.make("appworld", root=str(data), reward="tests", anchor="history", max_turns=2)
    try:
        first = env.reset(env.tasks("train")[0])
        assert first.key != env.step("pass").observation.key
        cut = env.step("pass")
        assert (cut.reward, cut.done, cut.success, cut.info["truncated"]) == (0.5, True, False, True)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("program", "words"),
    [("while True: pass", "no answer to step within"), ("x = b'x' * 2**33", "MemoryError"), ("import os; os._exit(3)", "exit code 3")],
)
def test_a_program_that_goes_wild_ends_its_own_process_alone(data: Path, program: str, words: str) -> None:
    env: Any = tw.make("appworld", root=str(data), timeout=15.0, memory_mb=500)
    try:
        task = env.tasks("train")[0]
        env.reset(task)
        if words.startswith("no answer"):
            env._process._timeout = 0.5  # of this process alone: the next one has to start within the limit
        if words == "MemoryError":
            assert words in env.step(program).observation.text
        else:
            with pytest.raises(TurnwiseError, match=words):
                env.step(program)
        assert env.reset(task).text.startswith("Your task is")
    finally:
        env.close()


def test_what_a_program_prints_or_reads_never_becomes_part_of_the_talk(data: Path) -> None:
    env: Any = tw.make("appworld", root=str(data))
    try:
        env.reset(env.tasks("train")[0])
        wild = env.step('import os, sys; os.write(1, b\'{"output": "stolen"}\\n\'); print(repr(sys.stdin.readline()))')
        assert wild.observation.text == "''"
    finally:
        env.close()


def test_appworld_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match="appworld download data"):
        tw.make("appworld", root=str(tmp_path))
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PYTHONPATH", "")
    env: Any = tw.make("appworld", root=str(tmp_path), python=sys.executable)
    with pytest.raises(TurnwiseError, match="pip install appworld"):
        env.tasks("train")
    with pytest.raises(TurnwiseError, match="cannot be started"):
        tw.tasks("appworld", root=str(tmp_path), python="/nonexistent/python")


def test_code_is_taken_out_of_fences() -> None:
    assert code_of("I think\n```python\na = 1\n```\nand\n```\nb = 2\n```") == "a = 1\n\nb = 2\n"
    assert code_of("  print(1)\x00 ") == "print(1)\ufffd"


def test_stand_ins_keep_the_contract(games: Path, data: Path) -> None:
    for name, options in (("textworld", {"games": str(games / "a.z8")}), ("appworld", {"root": str(data)})):
        report = check(name, turns=4, episodes=2, **options)
        assert report.ok, report.problems
