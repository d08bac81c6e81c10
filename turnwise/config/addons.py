"""The distribution `turnwise-envs`: what it offers, for listings and errors where it is not installed, and the recipes that plugins add.

This listing is all that Turnwise itself knows of those environments. An installed `turnwise-envs` registers them as a plugin
(`plugins.py`), with the summaries from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DISTRIBUTION, MODULE = "turnwise-envs", "turnwise_envs"
ENVIRONMENTS: Mapping[str, str] = {  # name → summary; each has an extra of the same name
    "appworld": "AppWorld: write code that uses the apps of a simulated person",
    "babyai": "BabyAI's levels as text: go to, pick up, open and move objects in rooms of which the agent sees a part",
    "bfcl": "BFCL's 800 multi-turn tool tasks: files, trading, travel, a vehicle, messages, tickets; scored by its own checks",
    "minihack": "MiniHack's tasks as text: rooms, mazes, lava, keys and tools in NetHack's world",
    "miniwob": "a browser: more than a hundred kinds of tasks on web pages (MiniWoB++) in Chromium; text or screenshots",
    "nethack": "NetHack itself as text: score, gold, stairs, food, exploration",
    "openenv": "an environment behind a running OpenEnv server",
    "reasoning": "reasoning-gym: 102 generators of questions (algebra, logic, games, …), answered in one turn or in several tries",
    "scienceworld": "ScienceWorld's thirty tasks of school science, their variations as splits",
    "shell": "a terminal in a sandbox: endless generated tasks about files, text, logs, archives, scripts and git, or your own",
    "tau2": "τ²-bench: customer service in airline, retail and telecom, with tools, a policy and a simulated user",
    "textarena": "the games of textarena, alone or against others: a random player, an expert, a model, or the policy itself (self-play)",
    "textworld": "TextWorld: coin, treasure and cooking games made on demand; or Z-machine games from a file or a folder",
    "textworld-express": "TextWorld-Express: eight small text games from seeds, such as coin, cookingworld and twc",
    "verifiers": "a multi-turn environment of the package verifiers, with its dataset, rollout and rubric",
}
RECIPES = ("babyai", "bfcl", "bfcl-0.5b", "miniwob", "reasoning", "shell", "textarena-selfplay")
GYMNASIUM_IDS = {"MiniGrid-": "babyai", "BabyAI-": "babyai", "MiniHack-": "minihack", "NetHack": "minihack"}  # start of an id → extra

_recipe_folders: list[Path] = []


def install_command(extra: str) -> str:
    """The command that installs the distribution with what one of its environments needs."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def recipe_environment(recipe: str) -> str | None:
    """The environment of a recipe that `turnwise-envs` offers; None for any other name."""
    return recipe.partition("-")[0] if recipe in RECIPES else None


def add_recipes(folder: Path) -> None:
    """Let a plugin's folder of recipes be used by their short names, as `turnwise train NAME`."""
    if folder not in _recipe_folders:
        _recipe_folders.append(folder)


def plugin_recipes() -> dict[str, Path]:
    """The recipes that installed plugins have added, by name."""
    from turnwise.config import plugins

    plugins.load()
    return {path.stem: path for folder in _recipe_folders for path in sorted(folder.glob("*.toml"))}
