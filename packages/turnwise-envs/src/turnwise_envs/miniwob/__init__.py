"""MiniWoB++: tasks on web pages in a real browser."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import Need, register
from turnwise_envs.shared.packages import needs_package


def _browser() -> bool:
    from turnwise_envs.miniwob.browser import find_chromium

    return find_chromium() is not None


register(
    "miniwob",
    "turnwise_envs.miniwob.env:MiniWobEnv",
    summary=ENVIRONMENTS["miniwob"],
    splits={"train": None, "valid": None, "test": None},
    max_turns=15,
    needs=[
        needs_package("miniwob", "miniwob"),
        Need("Chromium", _browser, "apt-get install chromium, or set TURNWISE_CHROMIUM to the path of a Chrome or Chromium"),
    ],
)
