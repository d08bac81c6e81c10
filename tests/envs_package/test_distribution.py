"""The distribution turnwise-envs: what Turnwise's listing says of it is what it has, and without it errors say what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, Cli

import turnwise as tw
from turnwise.config import addons, plugins
from turnwise.envs import registry
from turnwise.envs.gymnasium import words as gym_words
from turnwise.recipe.reading import find_recipe, shipped_recipes
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError, install_command, pip_arguments
from turnwise_envs import plugin

PACKAGE = ROOT / "packages" / "turnwise-envs"


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the distribution were not installed."""
    others = {name: registry.spec(name) for name in registry.names() if name not in addons.ENVIRONMENTS}
    monkeypatch.setattr(registry, "_specs", others)
    monkeypatch.setattr(addons, "_recipe_folders", [])
    monkeypatch.setattr(gym_words, "_families", [])


def test_the_listing_is_what_the_distribution_has() -> None:
    folder = "turnwise_envs."
    registered = [name for name in registry.names() if str(registry.spec(name).factory).startswith(folder)]
    assert registered == sorted(addons.ENVIRONMENTS)
    assert {registry.spec(name).summary for name in registered} == set(addons.ENVIRONMENTS.values())
    extras = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(addons.ENVIRONMENTS) == extras.keys() - {"all", "dev"}
    recipes = {path.stem for path in (PACKAGE / "src" / "turnwise_envs" / "recipes").glob("*.toml")}
    assert recipes == set(addons.RECIPES) and all(addons.recipe_environment(name) in addons.ENVIRONMENTS for name in recipes)
    prefixes = {prefix for family in (plugin.MINIGRID, plugin.NETHACK) for prefix in family.prefixes}
    assert prefixes == addons.GYMNASIUM_IDS.keys() and set(addons.GYMNASIUM_IDS.values()) <= extras.keys()
    folders = {path.parent.name for path in (PACKAGE / "src" / "turnwise_envs").glob("*/__init__.py")}
    assert folders == {str(registry.spec(name).factory).split(".")[1] for name in registered} | {"shared"}


@pytest.mark.parametrize("name", addons.RECIPES)
def test_its_recipes_are_read_by_their_short_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name in shipped_recipes()
    assert Config.load(name).env.name == addons.recipe_environment(name)


def test_registering_imports_no_environment() -> None:
    program = (
        "import sys, turnwise; from turnwise.envs import registry; assert 'babyai' in registry.names()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('turnwise_envs') and name.count('.') > 1))\n"
        "print(any(name in sys.modules for name in ('minigrid', 'textarena', 'gymnasium', 'torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["turnwise_envs.shared.java turnwise_envs.shared.java_wire turnwise_envs.shared.packages", "False"]


def test_help_and_import_do_not_load_the_plugin() -> None:
    program = "import sys; sys.argv = ['turnwise', '--help']; import turnwise\ntry: __import__('turnwise.cli.app').cli.app.main()\n"
    program += "except SystemExit: print('LOADED', [name for name in sys.modules if name.startswith('turnwise_envs')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stderr


@pytest.mark.usefixtures("not_installed")
def test_without_it_environments_and_recipes_say_what_to_install(here: Cli) -> None:
    command = install_command("babyai", addons.DISTRIBUTION)
    for call in (tw.make, tw.tasks, registry.spec):
        with pytest.raises(TurnwiseError, match="babyai") as told:
            call("babyai")
        assert command in str(told.value)
    for name in ("babyai", "babyai.toml", "recipes/babyai.toml"):
        with pytest.raises(TurnwiseError, match="babyai") as told:
            find_recipe(Path(name))
        assert command in str(told.value)
    with pytest.raises(TurnwiseError, match="MiniGrid") as told:
        gym_words.prepare("MiniGrid-Empty-5x5-v0")
    assert command in str(told.value)
    for words in (
        ["train", "babyai"],
        ["train", "env.name=babyai"],
        ["play", "babyai"],
        ["play", "babyai", "--agent", "random"],
        ["eval", "babyai"],
    ):
        done = here(*words)
        assert done.returncode != 0 and command in done.stderr, words


@pytest.mark.usefixtures("not_installed")
def test_without_it_the_listing_has_the_commands(here: Cli) -> None:
    rows = {row["name"]: row for row in registry.describe()}
    for name, summary in addons.ENVIRONMENTS.items():
        assert rows[name] == registry.describe(name)[0]
        assert not rows[name]["ready"] and rows[name]["summary"] == summary
        assert rows[name]["needs"][0]["remedy"] == install_command(name, addons.DISTRIBUTION)
    assert f"  shell: {install_command('shell', addons.DISTRIBUTION)}" in here("envs").stdout.splitlines()


@pytest.mark.usefixtures("not_installed")
def test_installing_one_brings_the_distribution(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("turnwise.envs.install._pip", lambda arguments: calls.append(list(arguments)))
    monkeypatch.setattr(plugins, "_done", False)
    done = here("envs", "--install", "babyai")
    assert calls[0] == pip_arguments("babyai", addons.DISTRIBUTION) and f"installing {calls[0][-1]}" in done.stdout
