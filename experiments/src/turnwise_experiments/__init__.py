"""Unproven methods, one file each. The README says of each what is uncertain, and which result would move it into Turnwise or remove it."""

from __future__ import annotations

from turnwise.config.plugins import look_in


def register() -> None:
    """The entry point `turnwise.plugins`: the files are imported when a name is looked up that Turnwise itself does not have."""
    look_in("turnwise_experiments")
