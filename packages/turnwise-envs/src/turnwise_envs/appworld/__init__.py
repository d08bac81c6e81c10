"""AppWorld: code that uses the apps of a simulated person."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import Need, register


def _python() -> bool:
    from turnwise_envs.appworld.env import has_appworld

    return has_appworld()


def _data() -> bool:
    from turnwise_envs.appworld.env import find_data

    return find_data().is_dir()


register(
    "appworld",
    "turnwise_envs.appworld.env:AppWorldEnv",
    summary=ENVIRONMENTS["appworld"],
    splits={"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417},
    max_turns=40,
    needs=[
        Need("a Python with AppWorld", _python, "a separate virtual environment: see docs/adapters.md"),
        Need("AppWorld's data", _data, "appworld install && appworld download data: see docs/adapters.md"),
    ],
)
