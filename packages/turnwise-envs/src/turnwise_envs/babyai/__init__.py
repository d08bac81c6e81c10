"""BabyAI: instructions in a grid world, from the package minigrid."""

from __future__ import annotations

from turnwise.envs.registry import needs_package, register

register(
    "babyai",
    "turnwise.envs.babyai.env:BabyAIEnv",
    summary="BabyAI's levels as text: go to, pick up, open and move objects in rooms of which the agent sees a part",
    splits={"train": None, "valid": None, "test": None},
    max_turns=64,
    needs=[needs_package("minigrid", "babyai")],
)
