"""Reward terms: functions of the user's own that are added to the environment's reward, each logged by its name.

A term is a function of one turn: `term(turn, transition, trajectory) -> float`. It sees the turn as it will be recorded (observation,
thought, action, response, validity), what the environment answered, and the trajectory so far. The recipe names it as
`path/to/file.py:function` with a weight. Whatever a term raises or returns that is not a finite number ends the run with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.envs.base import Transition
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Trajectory, Turn

TermFunction = Callable[[Turn, Transition, Trajectory], float]


@dataclass(frozen=True)
class Term:
    """One reward term."""

    name: str
    function: TermFunction
    weight: float = 1.0

    def __call__(self, turn: Turn, transition: Transition, trajectory: Trajectory) -> float:
        where = f"on turn {len(trajectory.turns)} of task {trajectory.task}"
        try:
            value = float(self.function(turn, transition, trajectory))
        except Exception as error:
            raise TurnwiseError(f"reward term {self.name!r} failed {where}: {error!r}") from error
        if not math.isfinite(value):
            raise TurnwiseError(f"reward term {self.name!r} gave {value} {where}; a finite number is needed")
        return self.weight * value


@dataclass(frozen=True)
class Rewards:
    """The reward of a turn: the environment's, scaled, plus the terms."""

    scale: float = 1.0
    terms: Sequence[Term] = ()

    def __call__(self, turn: Turn, transition: Transition, trajectory: Trajectory) -> tuple[float, dict[str, float]]:
        """The sum, and its parts by name (only where there are terms)."""
        own = self.scale * float(transition.reward)
        if not self.terms:
            return own, {}
        parts = {"environment": own} | {term.name: term(turn, transition, trajectory) for term in self.terms}
        return math.fsum(parts.values()), parts
