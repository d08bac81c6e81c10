"""The names in a recipe, checked by the rooms that know them, when the recipe is read. What takes seconds to import is imported only where
something was named that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.config.checks import check_with

if TYPE_CHECKING:
    from turnwise.config.sections import Credit, Objective, Run


def check_credit(section: Credit) -> None:
    """The algorithm and its options. A function of the user's own is looked at when the run is set up."""
    from turnwise.credit import algorithms

    if ":" not in section.name:
        section.check_names(algorithms[section.name].options)
        algorithms[section.name].bind(section.options, algorithms.kind)


def check_objective(section: Objective) -> None:
    """The objective, the correction, and their options."""
    usual = type(section).model_fields
    if all(getattr(section, key) == usual[key].default for key in ("name", "importance", "importance_options")) and not section.options:
        return  # nothing that would have to be looked up, which takes torch's seconds
    from turnwise.objectives import Loss, algorithms

    section.check_names(algorithms[section.name].options)
    Loss(section.name, section.options, importance=section.importance, importance_options=section.importance_options)


def check_trackers(section: Run) -> None:
    """The trackers, and those that options are given for."""
    from turnwise.runs.trackers import check_names

    check_names([*section.trackers, *section.tracker_options])


def check_when_read() -> None:
    """Have every recipe's names checked when it is read."""
    check_with("credit", check_credit)
    check_with("objective", check_objective)
    check_with("run", check_trackers)
