"""MiniHack and NetHack: tasks in NetHack's dungeons, from the packages nle and minihack."""

from __future__ import annotations

from turnwise.envs.registry import needs_package, register

register(
    "minihack",
    "turnwise.envs.minihack.env:MiniHackEnv",
    summary="MiniHack's tasks as text: rooms, mazes, lava, keys and tools in NetHack's world",
    splits={"train": None, "valid": None, "test": None},
    max_turns=100,
    needs=[needs_package("nle", "minihack"), needs_package("minihack", "minihack")],
)

register(
    "nethack",
    "turnwise.envs.minihack.env:NetHackEnv",
    summary="NetHack itself as text: score, gold, stairs, food, exploration",
    splits={"train": None, "valid": None, "test": None},
    max_turns=500,
    needs=[needs_package("nle", "minihack")],
)
