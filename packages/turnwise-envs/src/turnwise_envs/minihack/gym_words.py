"""Texts for the environments of MiniHack and NetHack behind Gymnasium, whose observations are arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.envs.gymnasium.words import Words
from turnwise_envs.minihack.tasks import all_names, goal, seed_game
from turnwise_envs.minihack.words import described, key
from turnwise_envs.shared.packages import load


def prepare(name: str) -> Mapping[str, Any]:
    """Import the package that registers an id. The phase of the moon would change a game from day to day."""
    load("minihack" if name.startswith("MiniHack-") else "nle", f"gymnasium environment {name!r}", "minihack")
    return {"fix_moon_phase": True}


def words(env: Any) -> Words:
    fits = getattr(env.action_space, "n", 0) == len(env.unwrapped.actions)
    names = all_names(env.unwrapped.actions) if fits else None
    return Words(names, describe=_described, mission=_mission, anchor=_state, seed=seed_game)


def _described(env: Any, observation: Any) -> str:
    """NetHack's screen, whichever part of it the observation has."""
    return described(_screen(env))


def _state(env: Any) -> bytes:
    inner = env.last_observation[env._internal_index]
    return key(_screen(env), bool(inner[1] or inner[2]))


def _screen(env: Any) -> dict[str, Any]:
    return dict(zip(env._observation_keys, env.last_observation, strict=True))


def _mission(env: Any) -> str:
    return goal(env.spec.name.removeprefix("MiniHack-")) if env.spec is not None else ""
