"""The sections of an arena file; `plan.py` says what they mean together."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from turnwise.config.section import Named, Section


class TuningSettings(Section):
    """The tuning that every method is allowed."""

    trials: int = Field(1, ge=1)
    """Settings that each method may try per environment; the first are its defaults."""
    seeds: list[int] = [0, 1]
    """Seeds of the tuning runs."""
    panel: dict[str, Any] = {"seed": 0}
    """Keys of [eval] for tuning runs."""
    common: dict[str, list[Any]] = {}
    """Settings that every method may tune, with their values."""


class EnvironmentSettings(Named):
    """An environment: a recipe, and further keys of a recipe for all methods."""

    recipe: str
    """The name of a recipe, or the path of one."""
    attempts: int | None = Field(None, ge=1)
    """Attempts of training here, if not the arena's."""


class MethodSettings(Named):
    """A method: keys of a recipe, and what may be tuned."""

    tune: dict[str, list[Any]] = {}
    """Settings that this method may tune, with their values."""
    seeds: int | None = Field(None, ge=1)
    """How many of the arena's seeds this method is run with; none: all."""
    environments: list[str] | None = None
    """Where it takes part; none: everywhere."""


class Prediction(Section):
    """Which method should win on an environment."""

    method: str
    """A method of the arena."""
    why: str
    """The reason, in a sentence."""


class ArenaSettings(Section):
    """An arena."""

    attempts: int = Field(ge=1)
    """Attempts of training in every run."""
    evaluations: int = Field(8, ge=1)
    """Evaluations over a run, the last one at its end."""
    seeds: list[int] = Field(min_length=1)
    """Seeds of the final runs."""
    controls: str | None = None
    """The method whose negative controls take part."""
    tuning: TuningSettings = TuningSettings()
    panel: dict[str, Any] = {"seed": 1}
    """Keys of [eval] for final runs."""
    environments: dict[str, EnvironmentSettings] = Field(min_length=1)
    methods: dict[str, MethodSettings] = Field(min_length=1)
    predictions: dict[str, Prediction] = {}
    """By environment."""
