"""reasoning-gym's generators of questions with answers that can be checked."""

from __future__ import annotations

from turnwise.envs.registry import needs_package, register

register(
    "reasoning",
    "turnwise.envs.reasoning.env:ReasoningEnv",
    summary="reasoning-gym: 102 generators of questions (algebra, logic, games, …), answered in one turn or in several tries",
    splits={"train": None, "valid": None, "test": None},
    needs=[needs_package("reasoning_gym", "reasoning")],
)
