"""The stages that a recipe names: `[method]`, `[plan]`, `[[signal]]`, `[credit]`, `[objective]`, `[schedule]`. Keys that a section does not
have are options of what it names."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from turnwise.config.section import Named, Options

CREDIT = "gigpo"  # the algorithm of a recipe that names none


class Credit(Named):
    """Credit assignment. Further keys are the algorithm's options: see `turnwise algos NAME`."""

    name: str = CREDIT
    """A credit algorithm that `turnwise algos` lists, or path/to/file.py:function."""


class Objective(Named):
    """The loss. Further keys are the objective's options: see `turnwise algos NAME`."""

    name: str = "clip"
    """An objective that `turnwise algos` lists, package.module:function or path/to/file.py:function."""
    aggregation: Literal["token", "turn", "trajectory", "trajectory_turn", "turn_sum", "trajectory_sum"] = "turn"
    """What has equal weight in the loss: every token, turn or trajectory; or plain sums divided by `constant`."""
    constant: float | None = Field(None, gt=0)
    """With turn_sum and trajectory_sum: the divisor."""
    kl: Literal["off", "loss", "reward"] = "off"
    """KL to the frozen reference: off, a term of the loss, or subtracted from the reward."""
    kl_coef: float = Field(0.01, ge=0)
    """Its coefficient."""
    kl_kind: Literal["k1", "k2", "k3", "k3+"] | None = None
    """Its estimator; none: k3 in the loss, k1 in the reward."""
    entropy_coef: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus."""
    importance: str = "none"
    """Correction for the difference between the engine's and the learner's log-probs: none or a name from docs/guides/objectives.md."""
    importance_options: Options = {}
    """Options of the correction."""


class Schedule(Named):
    """Which parts of a batch make up which optimiser step. Further keys are the schedule's options: see `turnwise algos NAME`."""

    name: str = "shuffled"
    """A schedule that `turnwise algos` lists, package.module:function or path/to/file.py:function. The default shuffles trajectories or
    turns into mini-batches as [learner] says."""


class Method(Named):
    """A method: settings that belong together, under one name. Further keys are its options: see `turnwise algos NAME`. What the recipe and
    the command line say themselves wins over the method; the method wins over defaults and over what `extends` brings."""

    name: str
    """A method that `turnwise algos method` lists, package.module:function or path/to/file.py:function."""
    faithful: bool = False
    """Also take the values of shared settings (aggregation, KL, clip, discount …) that the method's authors took. By default the recipe's
    hold, so that methods which are compared differ in nothing else."""
    authors: dict[str, Any] = {}
    """Those values, in the record of a run. A recipe need not set it."""


class Plan(Named):
    """Which attempts are made next. Further keys are the plan's options: see `turnwise algos NAME`."""

    name: str
    """A plan that `turnwise algos` lists, package.module:Class or path/to/file.py:Class. Without this section: plain."""


class Source(Named):
    """A source of batches of one's own, in front of the run's. Further keys are its options."""

    name: str
    """package.module:Class or path/to/file.py:Class, derived from turnwise.collect.source.OwnSource. Without this section, batches are
    collected in this process, or on the recipe's cluster."""


class Signal(Named):
    """A function that adds columns to every batch before credit. Further keys are its options: see `turnwise algos NAME`."""

    name: str
    """A signal that `turnwise algos` lists, package.module:function or path/to/file.py:function."""
