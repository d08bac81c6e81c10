"""Right answers: the package's own, its examples, and two that are found here, because it has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def solution(name: str, entry: Mapping[str, Any]) -> str | None:
    """An answer that should be right; None if there is none to be had."""
    if isinstance(entry["answer"], str) and entry["answer"]:
        return str(entry["answer"])
    found = entry["metadata"]
    if name == "propositional_logic":
        return str(found["example_answer"])
    if name == "rubiks_cube":
        return undone(str(found["scramble_moves"]))
    if name == "graph_color":
        return coloured(found["puzzle"])
    return None


def undone(moves: str) -> str:
    """Turns of a cube backwards."""
    return " ".join(move[:-1] if move.endswith("'") else move if move.endswith("2") else f"{move}'" for move in reversed(moves.split()))


def coloured(puzzle: Mapping[str, Any]) -> str | None:
    """Colours for the vertices of a graph such that neighbours differ, by trying."""
    near: dict[Any, set[Any]] = {vertex: set() for vertex in puzzle["vertices"]}
    for one, two in puzzle["edges"]:
        near[one].add(two)
        near[two].add(one)
    order = sorted(near, key=lambda vertex: (-len(near[vertex]), str(vertex)))
    chosen: dict[Any, Any] = {}

    def fill(place: int) -> bool:
        if place == len(order):
            return True
        for colour in puzzle["color_options"]:
            if all(chosen.get(other) != colour for other in near[order[place]]):
                chosen[order[place]] = colour
                if fill(place + 1):
                    return True
                del chosen[order[place]]
        return False

    return json.dumps({str(vertex): chosen[vertex] for vertex in near}) if fill(0) else None
