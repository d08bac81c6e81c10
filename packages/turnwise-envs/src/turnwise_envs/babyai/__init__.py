"""BabyAI: instructions in a grid world, from the package minigrid."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import register
from turnwise_envs.shared.packages import needs_package

register(
    "babyai",
    "turnwise_envs.babyai.env:BabyAIEnv",
    summary=ENVIRONMENTS["babyai"],
    splits={"train": None, "valid": None, "test": None},
    max_turns=64,
    needs=[needs_package("minigrid", "babyai")],
)
