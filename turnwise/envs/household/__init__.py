"""Households: ALFWorld's games and the simulator that plays them."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.registry import needs_data, register


def _alfworld_splits() -> Mapping[str, int]:
    from turnwise.envs.household.alfworld import open_library

    library = open_library()
    return {split: len(library.entries(split)) for split in library.splits()}


register(
    "alfworld",
    "turnwise.envs.household.alfworld:AlfworldEnv",
    summary="ALFWorld's text games in our own simulator, word for word as TextWorld answers",
    splits=_alfworld_splits,
    max_turns=50,
    needs=[
        needs_data("ALFWorld's games", "household.alfworld", "alfworld-download, or set ALFWORLD_DATA: see docs/environments/alfworld.md")
    ],
)

register(
    "household",
    "turnwise.envs.household.generated:HouseholdEnv",
    summary="generated households with ALFWorld's six tasks; nothing to download",
    splits={"train": None, "valid": None, "test": None},
    max_turns=30,
)
