"""`[collect]`, `[eval]` and `[[reward]]`: how attempts are made, and what they are worth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turnwise.config.section import Options, Section


class Collect(Section):
    """How a batch of attempts is collected."""

    groups: int = Field(16, ge=1)
    """Tasks per iteration."""
    group_size: int = Field(8, ge=1)
    """Attempts per task."""
    shared_prefix: Literal["once", "each"] = "once"
    """Turns that an attempt shares with the one that it branched from: learned from once, in that one, or each time they occur."""
    shuffle: bool = True
    """Shuffle tasks by the seed; false: keep the order of the task set."""


class Eval(Section):
    """Evaluation before, during and after training, on a panel that never overlaps the training tasks."""

    split: str = "valid"
    """The split of the panel."""
    n: int | None = Field(None, ge=1)
    """Number of tasks in the panel; none: all of the split, but at most 128."""
    seed: int = 0
    """Selects the tasks of the panel and seeds the environments."""
    every: int = Field(0, ge=0)
    """Evaluate every N iterations; 0: only before and after training."""
    temperature: float = Field(0.4, ge=0)
    """Sampling temperature; 0 is greedy."""
    repeats: int = Field(1, ge=1)
    """Attempts per task."""


class RewardTerm(Section):
    """A custom reward term, added to the environment's reward."""

    name: str
    """The name under which it is logged."""
    function: str
    """path/to/file.py:function, package.module:function or a registered name: a function of (turn, transition, trajectory)."""
    weight: float = 1.0
    """Its factor."""
    options: Options = {}
    """Options of the function: its keyword-only parameters."""
