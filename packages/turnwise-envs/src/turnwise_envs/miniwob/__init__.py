"""MiniWoB++: tasks on web pages in a real browser."""

from __future__ import annotations

from turnwise.envs.registry import Need, needs_package, register


def _browser() -> bool:
    from turnwise.envs.miniwob.browser import find_chromium

    return find_chromium() is not None


register(
    "miniwob",
    "turnwise.envs.miniwob.env:MiniWobEnv",
    summary="a browser: more than a hundred kinds of tasks on web pages (MiniWoB++) in Chromium; text or screenshots",
    splits={"train": None, "valid": None, "test": None},
    max_turns=15,
    needs=[
        needs_package("miniwob", "miniwob"),
        Need("Chromium", _browser, "apt-get install chromium, or set TURNWISE_CHROMIUM to the path of a Chrome or Chromium"),
    ],
)
