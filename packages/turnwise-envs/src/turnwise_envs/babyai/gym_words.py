"""Texts for MiniGrid's environments behind Gymnasium, whose observations are arrays."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from turnwise.envs.gymnasium.words import Words
from turnwise_envs.babyai.levels import load as load_without_prints
from turnwise_envs.babyai.words import ACTIONS, described, partial_view, thing, whole_view
from turnwise_envs.shared.packages import load

COMPASS = ("east", "south", "west", "north")  # MiniGrid's directions


def prepare(name: str) -> Mapping[str, Any]:
    """Import minigrid, which registers its ids."""
    load("minigrid", f"gymnasium environment {name!r}", "babyai")
    load_without_prints()
    return {}


def words(env: Any) -> Words:
    moves = (*ACTIONS, "done")
    fits = getattr(env.action_space, "n", 0) == len(moves)
    return Words(moves if fits else None, describe=_described, mission=_mission, anchor=_state)


def _mission(env: Any) -> str:
    return str(env.mission)


def _described(env: Any, observation: Any) -> str:
    """What the agent sees, by steps from it. A view of the whole grid is kept; all others are the package's partial view."""
    image = np.asarray(observation.get("image", ()) if isinstance(observation, Mapping) else observation)
    carried = None if env.carrying is None else thing(env.carrying.encode(), (0, 0))
    whole = whole_view(image, carried) if image.shape == (env.width, env.height, 3) else None
    scene = partial_view(env.gen_obs()["image"]) if whole is None else whole
    return f"You face {COMPASS[int(env.agent_dir)]}.\n{described(scene)}"


def _state(env: Any) -> bytes:
    """The whole grid with what boxes contain, the agent, what it carries, and which parts of a mission are done. The text shows less."""
    hidden = [(cell, _contents(item)) for cell, item in enumerate(env.grid.grid) if item is not None and item.contains is not None]
    pose = (*map(int, env.agent_pos), int(env.agent_dir))
    rest = repr((pose, _contents(env.carrying), hidden, str(env.mission), _done(getattr(env, "instrs", None))))
    return blake2b(env.grid.encode().tobytes() + rest.encode(), digest_size=16).digest()


def _contents(item: Any) -> list[Any]:
    """An object and what it contains."""
    return [] if item is None else [item.encode(), *_contents(item.contains)]


def _done(instruction: Any) -> list[Any]:
    """The finished parts of a mission of BabyAI, which may have two, each with two again."""
    if not hasattr(instruction, "instr_a"):
        return []
    return [instruction.a_done, instruction.b_done, _done(instruction.instr_a), _done(instruction.instr_b)]
