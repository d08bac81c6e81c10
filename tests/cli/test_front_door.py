"""The first commands: doctor, new, recipes, methods, and lists that fit a terminal of 80 columns."""

from __future__ import annotations

import getpass
import importlib.util
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, Cli
from launching import python
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.cli.new import FILES
from turnwise.recipe.reading import shipped_recipes
from turnwise.setup import doctor
from turnwise.util import terminal


def shown(*words: str, code: int = 0) -> str:
    found = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(words))
    assert found.exit_code == code, found.output
    return found.stdout


@pytest.mark.parametrize("kind", FILES)
def test_a_new_file_passes_its_test_and_is_never_overwritten(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = shown("new", kind, "my_first")
    files = {path.name for path in tmp_path.iterdir()}
    assert files >= {name.format(name="my_first") for name in FILES[kind]} and all(name in said for name in files)
    test = python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert test.returncode == 0, test.stdout
    tidy = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "140", "--select", "E,F,B", "."], cwd=tmp_path
    )
    assert tidy.returncode == 0
    again = CliRunner().invoke(app, ["new", kind, "my_first"])
    assert isinstance(again.exception, tw.TurnwiseError) and "exists already" in str(again.exception)


def test_what_to_do_next_includes_pytest_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "pip install" not in shown("new", "env", "first")
    monkeypatch.setattr("turnwise.cli.new.find_spec", lambda name: None)
    assert "-m pip install pytest\n" in shown("new", "env", "second")


def test_new_environments_methods_and_recipes_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("env", "method", "recipe"):
        shown("new", kind, f"my_{kind}")
    small = {"sft.tasks": 8, "sft.steps": 4, "sft.at_least": "none", "collect.groups": 2, "eval.n": 2, "model.tiny.hidden": 16}
    run = tw.train("my_recipe.toml", env="my_env.py:MyEnv", iterations=1, quiet=True, **{"method.name": "my_method.py:my_method", **small})
    assert run.metrics[-1]["iteration"] == 1
    assert tw.Recipe.load(run.folder / "config.toml").credit.name == "my_method.py:credit"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("game", "x"), "kind"),
        (("env", "my-game"), "letters, digits and _"),
        (("env", "class"), "letters"),
        (("env", "json"), "module of Python"),
    ],
)
def test_a_name_that_python_cannot_import_is_refused(words: tuple[str, str], reason: str) -> None:
    found = CliRunner().invoke(app, ["new", *words])
    assert isinstance(found.exception, tw.TurnwiseError) and reason in str(found.exception)


def test_every_recipe_is_listed_with_what_it_is_and_found_by_a_word() -> None:
    rows = json.loads(shown("recipes", "--json"))
    assert [row["name"] for row in rows] == list(shipped_recipes())
    assert all(row["about"] and row["environment"] and Path(row["file"]).is_file() for row in rows)
    assert {row["environment"] for row in json.loads(shown("recipes", "sokoban", "--json"))} == {"sokoban"}
    assert "quickstart" in shown("recipes") and "numberline-tiny" not in shown("recipes", "alfworld", "0.5b")


def test_methods_are_found_by_what_they_change_need_and_cost() -> None:
    found = {row["name"] for row in json.loads(shown("methods", "critic", "--json"))}
    assert {"ppo", "turn_ppo"} <= found and "gspo" not in found
    assert "ppo" not in {row["name"] for row in json.loads(shown("methods", "credit", "--without", "critic", "--json"))}
    assert "costs: a value head" in shown("methods", "turn_ppo") and "needs: " not in shown("methods")
    free = {row["name"] for row in json.loads(shown("methods", "costs: nothing", "--json"))}
    assert "grpo" in free and "vineppo" not in free


@pytest.mark.parametrize("words", [("envs",), ("algos",), ("recipes",), ("methods",), ("doctor", "--no-test")])
def test_lists_fit_a_narrow_terminal(words: tuple[str, ...]) -> None:
    lines = shown(*words).splitlines()
    commands = [line for line in lines if len(line) > 80]
    assert all("install" in line or ": " in line or "see docs" in line or line.startswith("      ") for line in commands), commands


def test_doctor_says_what_is_there_and_tests_training() -> None:
    said = shown("doctor")
    for words in (
        "machine",
        "torch",
        "extras",
        "environments",
        "household",
        "credit: as computed by hand",
        "engine and learner agree on cpu",
    ):
        assert words in said
    assert "Training works on this machine." in said


def test_a_broken_part_is_a_finding_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such sensor")

    monkeypatch.setattr(doctor, "machine", broken)
    parts = json.loads(shown("doctor", "--no-test", "--json", code=1))
    assert "no such sensor" in parts["machine"][0]["value"] and parts["torch"][0]["good"]


def test_the_report_for_an_issue_names_no_user_folder_or_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    told = f"{Path.home()}/x of {getpass.getuser()}x at http://me:hunter2@host/ with api_key=abc"
    monkeypatch.setattr(doctor, "environments", lambda: iter([doctor.Finding("mine", told, False)]))
    text = shown("doctor", "--report", "--no-test")
    assert "### torch" in text and "mine: ~/x" in text
    assert "hunter2" not in text and f"{Path.home()}/" not in text


def test_every_extra_has_a_purpose() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() - {"all", "dev", "docs", "oracle", "quickstart", "vllm"} == set(doctor.EXTRAS)


def test_recipes_have_titles_of_one_line() -> None:
    listed = shown("recipes").splitlines()
    for row in json.loads(shown("recipes", "--json")):
        assert [line for line in listed if line.split()[:1] == [row["name"]] and line.rstrip().endswith(row["about"])], row


def test_a_command_that_loads_for_long_says_so_and_one_that_has_spoken_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for spoken, wanted in ((False, 1), (True, 0)):
        said: list[str] = []
        monkeypatch.setattr(terminal, "say", lambda text, said=said, **more: said.append(text))
        terminal.SHOWN.set() if spoken else terminal.SHOWN.clear()
        with terminal.still_loading(0.01):
            time.sleep(0.3)
        assert len(said) == wanted and all("loading" in text for text in said)


def test_a_program_without_a_web_server_is_an_error_before_anything_is_loaded(
    here: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("new", "agent", "my_agent").returncode == 0
    find = importlib.util.find_spec
    monkeypatch.setattr("turnwise.setup.early.find_spec", lambda name: None if name == "starlette" else find(name))
    ended = here("train", "my_agent.toml", "iterations=1")
    assert ended.returncode == 2 and "[serve]" in ended.stderr and "evaluation" not in ended.stderr
    assert not (tmp_path / "runs").exists()
