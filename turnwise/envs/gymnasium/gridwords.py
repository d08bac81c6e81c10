"""Texts for grid worlds behind Gymnasium, whose observations are arrays: MiniGrid, NetHack, or what a user's function says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from turnwise.adapters.base import load
from turnwise.adapters.toytext import Words
from turnwise.config.kinds import DESCRIBER
from turnwise.config.loading import load_reference
from turnwise.envs.babyai.levels import load as without_prints
from turnwise.envs.babyai.words import ACTIONS, described, partial_view, thing, whole_view
from turnwise.envs.minihack import words as nethack_words
from turnwise.envs.minihack.tasks import all_names, goal, seed_game

COMPASS = ("east", "south", "west", "north")  # MiniGrid's directions
HOMES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {  # of an id: the package, our extra, arguments that make it reproducible
    "MiniGrid-": ("minigrid", "babyai", {}),
    "BabyAI-": ("minigrid", "babyai", {}),
    "MiniHack-": ("minihack", "minihack", {"fix_moon_phase": True}),
    "NetHack": ("nle", "minihack", {"fix_moon_phase": True}),
}


def register_home(name: str) -> Mapping[str, Any]:
    """Import the package that registers an id, if it is a known one: Gymnasium does not find it by itself. Returns default arguments."""
    for prefix, (package, extra, defaults) in HOMES.items():
        if name.startswith(prefix):
            load(package, f"gymnasium environment {name!r}", extra)
            if package == "minigrid":
                without_prints()
            return defaults
    return {}


def described_by(function: str | Callable[[Any, Any], str], words: Words | None) -> Words:
    """The texts of an environment with a user's own description: a function of (the bare environment, the observation)."""
    own = function if callable(function) else load_reference(function, DESCRIBER)
    return replace(words or Words(), describe=own, draw=False, anchor=None)


def recognised(env: Any) -> Words | None:
    """The texts of an environment that is recognised by its class; None for any other."""
    bases = {f"{base.__module__}.{base.__name__}" for base in type(env.unwrapped).__mro__}
    if "minigrid.minigrid_env.MiniGridEnv" in bases:
        moves = (*ACTIONS, "done")
        fits = getattr(env.action_space, "n", 0) == len(moves)
        return Words(moves if fits else None, describe=_minigrid, mission=_mission, anchor=_minigrid_state)
    if "nle.env.base.NLE" in bases:
        fits = getattr(env.action_space, "n", 0) == len(env.unwrapped.actions)
        names = all_names(env.unwrapped.actions) if fits else None
        return Words(names, describe=_nethack, mission=_task, anchor=_nethack_state, seed=seed_game)
    return None


def _mission(env: Any) -> str:
    return str(env.mission)


def _minigrid(env: Any, observation: Any) -> str:
    """What the agent sees, by steps from it. A view of the whole grid is kept; all others are the package's partial view."""
    image = np.asarray(observation.get("image", ()) if isinstance(observation, Mapping) else observation)
    carried = None if env.carrying is None else thing(env.carrying.encode(), (0, 0))
    whole = whole_view(image, carried) if image.shape == (env.width, env.height, 3) else None
    scene = partial_view(env.gen_obs()["image"]) if whole is None else whole
    return f"You face {COMPASS[int(env.agent_dir)]}.\n{described(scene)}"


def _minigrid_state(env: Any) -> bytes:
    """The whole grid with what boxes contain, the agent, what it carries, and which parts of a mission are done. The text shows less."""
    hidden = [(place, _contents(found)) for place, found in enumerate(env.grid.grid) if found is not None and found.contains is not None]
    pose = (*map(int, env.agent_pos), int(env.agent_dir))
    rest = repr((pose, _contents(env.carrying), hidden, str(env.mission), _done(getattr(env, "instrs", None))))
    return blake2b(env.grid.encode().tobytes() + rest.encode(), digest_size=16).digest()


def _contents(found: Any) -> list[Any]:
    """An object and what it contains."""
    return [] if found is None else [found.encode(), *_contents(found.contains)]


def _done(instruction: Any) -> list[Any]:
    """The finished parts of a mission of BabyAI, which may have two, each with two again."""
    if not hasattr(instruction, "instr_a"):
        return []
    return [instruction.a_done, instruction.b_done, _done(instruction.instr_a), _done(instruction.instr_b)]


def _nethack(env: Any, observation: Any) -> str:
    """NetHack's screen, whichever part of it the observation has."""
    return nethack_words.described(_screen(env))


def _nethack_state(env: Any) -> bytes:
    inner = env.last_observation[env._internal_index]
    return nethack_words.key(_screen(env), bool(inner[1] or inner[2]))


def _screen(env: Any) -> dict[str, Any]:
    return dict(zip(env._observation_keys, env.last_observation, strict=True))


def _task(env: Any) -> str:
    return goal(env.spec.name.removeprefix("MiniHack-")) if env.spec is not None else ""
