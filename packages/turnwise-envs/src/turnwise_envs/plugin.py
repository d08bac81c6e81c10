"""The entry point `turnwise.plugins`: registers the environments, the recipes, and the words for Gymnasium's grid worlds.

Each folder registers itself in its `__init__.py`, with factories given as text: loading this imports no environment.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from turnwise.config.addons import add_recipes
from turnwise.envs.gymnasium.words import Family, add_family

FOLDERS = (
    "appworld",
    "babyai",
    "bfcl",
    "minihack",
    "miniwob",
    "openenv",
    "reasoning",
    "scienceworld",
    "shell",
    "tau2",
    "textarena",
    "textworld",
    "verifiers",
)
MINIGRID = Family(
    ("MiniGrid-", "BabyAI-"),
    "minigrid.minigrid_env.MiniGridEnv",
    "turnwise_envs.babyai.gym_words:prepare",
    "turnwise_envs.babyai.gym_words:words",
)
NETHACK = Family(
    ("MiniHack-", "NetHack"),
    "nle.env.base.NLE",
    "turnwise_envs.minihack.gym_words:prepare",
    "turnwise_envs.minihack.gym_words:words",
)


def register() -> None:
    """Called by Turnwise when a name is first looked up."""
    for folder in FOLDERS:
        import_module(f"turnwise_envs.{folder}")
    add_recipes(Path(__file__).parent / "recipes")
    add_family(MINIGRID)
    add_family(NETHACK)
