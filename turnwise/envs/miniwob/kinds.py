"""The kinds of tasks: the pages of the package, without those that cannot be played as text turns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from turnwise.util.errors import TurnwiseError

LEFT_OUT: Mapping[str, str] = {}
REMEMBERED: frozenset[str] = frozenset()


def folder() -> Path:
    """The pages of the package, which is not imported: its own code needs Selenium and starts with a game library."""
    found = find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise TurnwiseError("miniwob needs an optional package. Install it with: pip install 'turnwise[miniwob]'")
    return Path(next(iter(found.submodule_search_locations))) / "html" / "miniwob"


@cache
def kinds() -> tuple[str, ...]:
    """All kinds that can be played, in order."""
    return tuple(sorted(path.stem for path in folder().glob("*.html") if path.stem not in LEFT_OUT))
