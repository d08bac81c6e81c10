"""Households: ALFWorld's games and the simulator that plays them."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.registry import Need, register


def _alfworld_present() -> bool:
    from turnwise.envs.household.alfworld import find_data

    return find_data().is_dir()


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
    needs=[Need("ALFWorld's games", _alfworld_present, "alfworld-download, or set ALFWORLD_DATA: see docs/alfworld.md")],
)

register(
    "household",
    "turnwise.envs.household.generated:HouseholdEnv",
    summary="generated households with ALFWorld's six tasks; nothing to download",
    splits={"train": None, "valid": None, "test": None},
    max_turns=30,
)
