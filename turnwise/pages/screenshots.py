"""Screenshots that an environment kept for people: `screenshot` in the `info` of a step shows the page before the action, and
`screenshot_after` in the last one what came of it. A run's files are not trusted: only small images in base64 are passed on."""

from __future__ import annotations

import re
from typing import Any

LARGEST = 100_000  # characters
ADDRESS = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}")
PLACES = ("screenshot", "screenshot_after")


def take_screenshots(turn: dict[str, Any]) -> list[str]:
    """The screenshots of a turn, in order, and out of its `info`, which is shown as text."""
    env = turn["info"].get("env") if isinstance(turn.get("info"), dict) else None
    if not isinstance(env, dict):
        return []
    found = [env.pop(name) for name in PLACES if name in env]
    if not env:
        del turn["info"]["env"]
    return [one for one in found if isinstance(one, str) and len(one) <= LARGEST and ADDRESS.fullmatch(one)]
