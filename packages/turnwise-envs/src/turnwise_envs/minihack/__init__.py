"""MiniHack and NetHack: tasks in NetHack's dungeons, from the packages nle and minihack."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import register
from turnwise_envs.shared.packages import needs_package

register(
    "minihack",
    "turnwise_envs.minihack.env:MiniHackEnv",
    summary=ENVIRONMENTS["minihack"],
    splits={"train": None, "valid": None, "test": None},
    max_turns=100,
    needs=[needs_package("nle", "minihack"), needs_package("minihack", "minihack")],
)

register(
    "nethack",
    "turnwise_envs.minihack.env:NetHackEnv",
    summary=ENVIRONMENTS["nethack"],
    splits={"train": None, "valid": None, "test": None},
    max_turns=500,
    needs=[needs_package("nle", "minihack")],
)
