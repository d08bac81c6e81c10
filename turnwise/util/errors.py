"""Errors that say what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TurnwiseError(ValueError):
    """Input that Turnwise cannot work with. The message names the place and the remedy; the CLI prints it without a traceback."""


class Stopped(TurnwiseError):
    """Ctrl-C, or another signal to end, came before there was anything to keep."""


class MissingExtra(TurnwiseError, ImportError):
    """A feature needs an optional package that is not installed."""

    def __init__(self, feature: str, extra: str):
        super().__init__(f"{feature} needs an optional package. Install it with: pip install 'turnwise[{extra}]'")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TurnwiseError:
    """The error for a name that is not known: it names the nearest one and lists all."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TurnwiseError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}")
