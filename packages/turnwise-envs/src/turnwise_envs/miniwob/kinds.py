"""The kinds of tasks: the pages of the package, without those that cannot be played as text turns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from turnwise.config.addons import DISTRIBUTION
from turnwise.util.errors import MissingExtra

LEFT_OUT: Mapping[str, str] = {
    "chase-circle": "the mouse has to follow a circle all the time, which turns cannot do",
    "hover-shape": "the mouse has to stay on a moving square all the time, and the page never ends the attempt",
    "simon-says": "the buttons to press are shown as an animation between two turns",
    "draw-circle": "the mouse has to be dragged along a circle, and drags are straight",
}
SEEN_ONLY = frozenset({"count-sides"})  # the shape is only in the picture: offered by name, for models that see
REMEMBERED = frozenset({"click-button-sequence", "button-delay", "social-media-all", "social-media-some"})  # pages that hide past clicks
TIMED = frozenset({"button-delay"})  # the task is about the clock


def folder() -> Path:
    """The pages of the package, which is not imported: its own code needs Selenium and starts with a game library."""
    found = find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("miniwob", "miniwob", DISTRIBUTION)
    return Path(next(iter(found.submodule_search_locations))) / "html" / "miniwob"


@cache
def kinds() -> tuple[str, ...]:
    """All kinds that can be played, in order."""
    return tuple(sorted(path.stem for path in folder().glob("*.html") if path.stem not in LEFT_OUT))
