"""Sokoban: generated rooms and Boxoban's."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.registry import needs_data, register


def _boxoban_splits() -> Mapping[str, int]:
    from turnwise.envs.sokoban.boxoban import BoxobanEnv, find_data, splits

    return {split: len(BoxobanEnv().tasks(split)) for split in splits(find_data())}


register(
    "sokoban",
    "turnwise.envs.sokoban.env:GeneratedSokoban",
    summary="generated Sokoban rooms of any size, each solvable within a given number of moves; text or pictures",
    splits={"train": None, "valid": None, "test": None},
    max_turns=15,
)

register(
    "boxoban",
    "turnwise.envs.sokoban.boxoban:BoxobanEnv",
    summary="Boxoban's Sokoban rooms, 10 × 10 with four boxes; text or pictures",
    splits=_boxoban_splits,
    max_turns=120,
    needs=[needs_data("Boxoban's rooms", "sokoban.boxoban", "clone boxoban-levels, or set BOXOBAN_DATA: see docs/environments/sokoban.md")],
)
