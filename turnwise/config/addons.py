"""The distributions `turnwise-envs` and `turnwise-experiments`: what they offer, for listings and errors where they are not installed, and
the recipes that plugins add.

This listing is all that Turnwise itself knows of them. Where one is installed, it registers what it has as a plugin (`plugins.py`);
environments have their summaries from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnwise.util.errors import TurnwiseError, install_command

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
UNPROVEN = (  # methods of turnwise-experiments, and those of their stages that have other names
    *("constant_context", "eapo", "himac", "inspo", "mica", "serl", "strata", "t2po", "t_star", "vspo"),
    *("hindsight", "potential", "staged_reward", "state_block", "workspace"),
)
RENAMED: dict[str, str] = {}  # deprecated names and the new name of each: for one minor version, then they are among those below
FORMER: Mapping[str, str] = {  # names that are gone, and what to do
    "epo_hinge": "use epo",
    "information_curriculum": "gains and outcomes weigh the same in the whole run",
    "ipa_rollback": "tcod_b2f starts attempts in the expert's trajectory",
}

_recipe_folders: list[Path] = []


def comes_with(what: str, environment: str) -> TurnwiseError:
    """The error for something that `turnwise-envs` has, which is not installed. Each environment has an extra."""
    return TurnwiseError(f"{what} comes with the package {DISTRIBUTION}. Install it with: {install_command(environment, DISTRIBUTION)}")


def unregistered(kind: str, name: str) -> TurnwiseError | None:
    """The error for a name that `turnwise-experiments` would have registered, or that is gone; None for any other name."""
    if name in FORMER:
        return TurnwiseError(f"there is no {kind} {name!r} any more: {FORMER[name]}")
    if name in UNPROVEN:
        where = "comes with the package turnwise-experiments. Install it with: pip install ./experiments, in a clone of Turnwise"
        return TurnwiseError(f"{kind} {name!r} is unproven and {where}")
    return None


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
