"""Errors that state what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONG_LIST = 60  # names: more than that hide the suggestion


class TurnwiseError(ValueError):
    """Invalid input. The message names the location and the remedy; the CLI prints it without a traceback."""


class Stopped(TurnwiseError):
    """Ctrl-C, or another termination signal, arrived before there was anything to save."""


class MissingExtra(TurnwiseError, ImportError):
    """A feature needs an optional package that is not installed: an extra of Turnwise or of another distribution."""

    def __init__(self, feature: str, extra: str, distribution: str = "turnwise"):
        super().__init__(f"{feature} needs an optional package. Install it with: pip install '{distribution}[{extra}]'")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TurnwiseError:
    """The error for an unknown name: it suggests the closest match and lists all names. A long list is left out if there is a match."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if near and len(names) > LONG_LIST:
        return TurnwiseError(f"unknown {kind} {name!r}.{hint}")
    return TurnwiseError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}")
