"""Households: ALFWorld's games, and houses of our own making, in one simulator. Nothing heavy is imported until one is made."""

from __future__ import annotations

from turnwise.envs.registry import register

register(
    "household",
    "turnwise.envs.household.generated:HouseholdEnv",
    summary="generated households with ALFWorld's six tasks; nothing to download",
    splits={"train": None, "valid": None, "test": None},
    max_turns=30,
)
