"""ScienceWorld's tasks of school science."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import register
from turnwise_envs.shared.java import needs_java
from turnwise_envs.shared.packages import needs_package

register(
    "scienceworld",
    "turnwise_envs.scienceworld.env:ScienceWorldEnv",
    summary=ENVIRONMENTS["scienceworld"],
    splits={"train": 3592, "valid": 1796, "test": 1819},
    max_turns=100,
    needs=[needs_package("scienceworld", "scienceworld"), needs_java()],
)
