"""User objects that live as long as a run: an objective or a schedule that is a class.

They may have `begin(progress)`, called before every update with the share of the run that is behind, `observe(metrics)`, called after it,
and `state()` with `load_state(state)`: what `state` gives is plain JSON and is kept in the checkpoint, so that a killed and resumed run
gives the same result as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.util.errors import TurnwiseError


def tell(piece: Any, metrics: Mapping[str, float]) -> None:
    """Pass an update's metrics to an object that has `observe`."""
    if (observe := getattr(piece, "observe", None)) is not None:
        observe(dict(metrics))


def begin(piece: Any, progress: float) -> None:
    """Tell an object that wants to know, before an update, the share of the run that is behind."""
    if (start := getattr(piece, "begin", None)) is not None:
        start(progress)


def states_of(pieces: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """The states of these objects, by kind with their names, for a resume; those without state are left out."""
    found = {}
    for kind, (name, piece) in pieces.items():
        if (give := getattr(piece, "state", None)) is None:
            continue
        try:
            found[kind] = {"name": name, "state": json.loads(json.dumps(give()))}
        except (TypeError, ValueError) as error:
            raise TurnwiseError(
                f"{kind} {name!r}: state() returned what cannot be kept as JSON ({error}): return numbers, texts, lists and dictionaries"
            ) from None
    return found


def load_states(pieces: Mapping[str, tuple[str, Any]], states: Mapping[str, Any]) -> None:
    """Give the objects back what `states_of` kept. A state of an object with another name is ignored."""
    for kind, (name, piece) in pieces.items():
        kept = states.get(kind)
        if kept is None or kept["name"] != name:
            continue
        if (load := getattr(piece, "load_state", None)) is None:
            raise TurnwiseError(f"{kind} {name!r} gave a state to the checkpoint and has no load_state(state) to take it back")
        load(kept["state"])
