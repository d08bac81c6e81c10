"""What somebody does first: the least recipe on an environment, and the pages about tools and about one's own environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.envs import registry
from turnwise.envs.check import check
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter

# A page's recipe is trained as it stands, only shorter.
SHORT: dict[str, Any] = {
    "iterations": 1,
    "collect.groups": 2,
    "collect.group_size": 2,
    "sft.tasks": 4,
    "sft.steps": 2,
    "sft.at_least": None,  # or the imitation would go on
    "model.tiny.vocabulary_tasks": 4,
    "model.tiny.layers": 1,
    "eval.every": 0,
    "eval.repeats": 1,
    "run.checkpoint_every": 0,
}


class Told(Reporter):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def saved(page: str, folder: Path) -> list[str]:
    """The files that a page asks to save, written to a folder."""
    text = (ROOT / "docs" / page).read_text()
    files = re.findall(r"[Ss]ave this as `([\w.]+)`[^`]*?(?:`[^`]+`[^`]*?)*?```(?:python|toml)\n(.*?)```", text, re.DOTALL)
    for name, code in files:
        (folder / name).write_text(code)
    return [name for name, _ in files]


def trained(recipe: str, tmp_path: Path, **changes: Any) -> Any:
    """A short run of a recipe, in which every attempt was played as the environment allows."""
    result = tw.train(recipe, quiet=True, out=str(tmp_path / "runs"), **{**SHORT, **changes})
    assert result.summary["finished"] and result.summary["turns"] > 0
    for line in result.metrics:
        assert not line.get("collect/faults") and not line.get("collect/stop/context limit"), line
    return result


COMPLETE = [row["name"] for row in registry.describe(None) if row["ready"] and (not row["needs"] or row["name"] == "gymnasium")]


@pytest.mark.parametrize("name", COMPLETE)
def test_a_recipe_that_names_only_an_environment_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("least.toml").write_text(f'[env]\nname = "{name}"\n')
    shown = Told()
    tasks = min(len(tw.tasks(name)), 64)  # not the thousands that an endless set has: each is compared with those held out
    assert trained("least", tmp_path, reporter=shown, **{"env.tasks": tasks, "env.max_turns": 4, "eval.n": 2}).metrics
    assert not [text for text in shown.notes if "warning" in text or "does not" in text or "!" in text]


def test_the_environments_that_need_no_data_are_found() -> None:
    assert {"household", "sokoban", "points24", "ezpoints", "numberline", "blackjack"} <= set(COMPLETE)


def test_a_recipe_extends_a_shipped_one_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.toml").write_text('extends = "quickstart"\n[env]\nname = "numberline"\noptions = { highest = 9 }\n')
    config = Config.load("deep/mine.toml")
    assert config.env.name == "numberline" and config.env.options == {"highest": 9} and config.sft is not None


def test_overrides_of_the_tiny_model_leave_the_rest_of_the_least_recipe(tmp_path: Path) -> None:
    (tmp_path / "least.toml").write_text('[env]\nname = "numberline"\n')
    plain, larger = (Config.load(tmp_path / "least.toml", changes) for changes in ({}, {"model.tiny.layers": 3}))
    assert larger.model.tiny.layers == 3 and larger.sft == plain.sft and larger.learner == plain.learner


def test_the_page_about_tools_is_followed_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved("environments/tools.md", tmp_path) == ["shop.py", "shop.toml"]
    written = subprocess.run([sys.executable, "shop.py"], check=True, capture_output=True, text=True)
    Path("shop.jsonl").write_text(written.stdout)
    assert check("tools", episodes=2, turns=4, file="shop.jsonl", functions="shop.py:price", reward="shop.py:right").ok
    result = trained("shop.toml", tmp_path, **{"env.max_turns": 3})  # the calls, and the answer
    assert result.summary["panel_size"] == 9  # all that the file holds out


def test_the_page_about_environments_is_followed_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved("guides/environments.md", tmp_path)[:2] == ["guess.py", "guess.toml"]
    assert len([line for line in Path("guess.py").read_text().splitlines() if line.strip()]) <= 32
    assert check("guess.py:Guess").problems == []
    played = CliRunner().invoke(app, ["play", "guess.py:Guess", "--task", "7", "--watch"])
    assert played.exit_code == 0 and "You have done it." in played.output
    assert trained("guess.toml", tmp_path, **{"eval.n": 2}).summary["name"] == "guess"
