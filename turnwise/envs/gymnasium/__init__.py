"""Any Gymnasium environment whose actions can be written as text."""

from __future__ import annotations

from turnwise.envs.registry import needs_package, register

register(
    "gymnasium",
    "turnwise.envs.gymnasium.env:GymnasiumEnv",
    summary="any Gymnasium environment with discrete, multi-discrete or text actions, by its id",
    needs=[needs_package("gymnasium", "gymnasium")],
)
