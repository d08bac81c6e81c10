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
from turnwise.envs.check import check

# A page's recipe is trained as it stands, only shorter.
SHORT: dict[str, Any] = {
    "iterations": 1,
    "collect.groups": 2,
    "collect.group_size": 2,
    "sft.tasks": 4,
    "sft.steps": 2,
    "model.tiny.vocabulary_tasks": 4,
    "model.tiny.layers": 1,
    "eval.every": 0,
    "run.checkpoint_every": 0,
}


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


@pytest.mark.parametrize("name", ["household", "sokoban", "points24"])
def test_a_recipe_that_names_only_an_environment_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("least.toml").write_text(f'[env]\nname = "{name}"\n')
    assert trained("least", tmp_path, **{"env.max_turns": 4, "eval.n": 2}).metrics


def test_the_page_about_tools_is_followed_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved("environments/tools.md", tmp_path) == ["shop.py", "shop.toml"]
    written = subprocess.run([sys.executable, "shop.py"], check=True, capture_output=True, text=True)
    Path("shop.jsonl").write_text(written.stdout)
    assert check("tools", episodes=2, turns=4, file="shop.jsonl", functions="shop.py:price", reward="shop.py:right").ok
    result = trained("shop.toml", tmp_path)
    assert result.summary["panel_size"] == 9  # all that the file holds out


def test_the_page_about_environments_is_followed_at_the_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved("guides/environments.md", tmp_path)[:2] == ["guess.py", "guess.toml"]
    assert len([line for line in Path("guess.py").read_text().splitlines() if line.strip()]) <= 32
    assert check("guess.py:Guess").problems == []
    played = CliRunner().invoke(app, ["play", "guess.py:Guess", "--task", "7", "--watch"])
    assert played.exit_code == 0 and "You have done it." in played.output
    assert trained("guess.toml", tmp_path, **{"eval.n": 2}).summary["name"] == "guess"
