"""reasoning-gym's generators of questions with answers that can be checked."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import register
from turnwise_envs.shared.packages import needs_package

register(
    "reasoning",
    "turnwise_envs.reasoning.env:ReasoningEnv",
    summary=ENVIRONMENTS["reasoning"],
    splits={"train": None, "valid": None, "test": None},
    needs=[needs_package("reasoning_gym", "reasoning")],
)
