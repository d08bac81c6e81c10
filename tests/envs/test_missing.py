"""What an environment says when something that it needs is missing: one line with what to install. For all of them at once, in a process
that finds neither their packages nor any program nor data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError

PROGRAM = """
import json, sys
import turnwise as tw
from turnwise.envs import registry
from turnwise.util.errors import TurnwiseError

packages = {need.install.module.split(".")[0] for name in registry.names() for need in registry.spec(name).needs if need.install}
for package in packages:
    sys.modules[package] = None  # as if it were not installed
options = {"openenv": {"url": "http://127.0.0.1:9"}, "verifiers": {"environment": "x"}}  # without these, that is the first complaint
found = {}
for row in registry.describe():
    if row["needs"]:
        remedies = [need["remedy"] for need in row["needs"] if not need["present"]]
        try:
            env = tw.make(row["name"], **options.get(row["name"], {}))
            env.reset(tw.tasks(row["name"], "train", n=1)[0])
            told, ours = "", True
        except Exception as error:
            told, ours = str(error), isinstance(error, TurnwiseError)
        found[row["name"]] = {"told": told, "ours": ours, "remedies": remedies, "what": [need["what"] for need in row["needs"]]}
print(json.dumps({"broken": registry.broken(), "found": found}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("bare")
    known = {"PATH": str(home), "HOME": str(home), "TURNWISE_CACHE": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    known |= {"TURNWISE_DATA": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=known, cwd=home)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_listing_needs_no_package(told: dict[str, Any]) -> None:
    assert told["broken"] == {}
    assert {"gymnasium", "scienceworld", "openenv", "shell", "reasoning", "verifiers"} <= set(told["found"])


def test_what_is_missing_is_said_in_one_line_that_says_what_to_install(told: dict[str, Any]) -> None:
    for name, row in told["found"].items():
        assert row["told"], f"{name} runs although it lacks {row['what']}"
        assert row["ours"], f"{name}: {row['told']}"
        assert "\n" not in row["told"] and len(row["told"]) < 600, f"{name}: {row['told']}"
        assert row["remedies"] and all("\n" not in remedy and 10 < len(remedy) < 140 for remedy in row["remedies"]), name
        installed = [remedy for remedy in row["remedies"] if "install" in remedy and "see docs" not in remedy]
        if installed and len(installed) == len(row["remedies"]):  # else data is missing, too, which may come first
            assert any(word in row["told"] for word in ("pip install", "turnwise envs --install", "apt")), f"{name}: {row['told']}"


# -- a dry run ------------------------------------------------------------------------------------------------------------------------

ALFWORLD = sorted((ROOT / "recipes").glob("alfworld*.toml"))[::5]


@pytest.fixture
def without_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TURNWISE_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", ALFWORLD, ids=lambda path: path.stem)
def test_a_dry_run_without_games_says_what_it_can_and_then_what_is_missing(recipe: Path, without_games: Path) -> None:
    config = Config.load(recipe)
    own = [] if not str(config.model.path).startswith("runs/") else ["model.path=Qwen/Qwen2.5-0.5B-Instruct"]
    result = CliRunner().invoke(app, ["train", str(recipe), "--dry-run", *own, "--memory", "40"])
    assert isinstance(result.exception, TurnwiseError) and result.exit_code != 0
    looked = f"looked in {without_games / '.cache' / 'alfworld'}"
    assert all(words in str(result.exception) for words in ("games were not found", looked, "alfworld-download", "env.options.data"))
    sizes = f"an iteration: {config.collect.groups} tasks × {config.collect.group_size} attempts × at most {config.env.max_turns} turns"
    assert "[learner]" in result.output and sizes in result.output and "model: about " in result.output
    assert ("a warm start: " in result.output) == (config.sft is not None)
    assert "40 GB as it is: the predicted peak is" in result.output or "Chosen so that it fits (predicted peak" in result.output


def test_a_dry_run_names_a_missing_model_too(without_games: Path) -> None:
    recipe = str(ROOT / "recipes" / "alfworld-0.5b-gigpo.toml")
    result = CliRunner().invoke(app, ["train", recipe, "--dry-run"])
    missing = f"model runs/alfworld-0.5b-start/model: no such folder (looked in {without_games})"
    assert f". Also: {missing}" in str(result.exception) and "model: not known yet" in result.output
    alone = CliRunner().invoke(app, ["train", "--dry-run", "model.path=runs/gone/model"])
    assert str(alone.exception).startswith("model runs/gone/model: no such folder") and "an iteration: " in alone.output
    assert CliRunner().invoke(app, ["train", "--dry-run", "model.path=somebody/unknown"]).exit_code == 0, "a hub may have it"
    fit = CliRunner().invoke(app, ["fit", recipe])
    assert "no such folder" in str(fit.exception) and "`turnwise fit --model` takes a size" in str(fit.exception)
