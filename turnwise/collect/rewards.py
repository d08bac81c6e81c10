"""Reward terms: the user's functions that are added to the environment's reward, each logged by its name.

A term is a function of one turn: `term(turn, transition, trajectory) -> float`. It sees the turn as it will be recorded (observation,
thought, action, response, validity), what the environment answered, and the trajectory so far. The recipe names it as
`path/to/file.py:function`, `package.module:function` or by a registered name, with a weight; keyword-only parameters are its options. A
term that raises an error, or returns anything but a finite number, ends the attempt with an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.config.kinds import REWARD
from turnwise.config.options import Registry
from turnwise.data.rollouts import LARGEST_REWARD, Trajectory, Turn
from turnwise.envs.base import Transition
from turnwise.envs.blame import one_line, own_lines, place_of
from turnwise.util.errors import TurnwiseError

TermFunction = Callable[[Turn, Transition, Trajectory], float]

terms: Registry[Callable[..., float]] = Registry("reward term", code=REWARD)
register = terms.register


class BadReward(TurnwiseError):
    """A reward that is not usable: that of a term, or the sum of all parts. `lines` are those of the user's own file."""

    def __init__(self, message: str, lines: str = ""):
        super().__init__(message)
        self.lines = lines


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
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also sys.exit: a term must not end the run
            raise BadReward(f"reward term {self.name!r} failed {where}: {one_line(error)}", own_lines(error)) from error
        if not math.isfinite(value):
            raise BadReward(f"reward term {self.name!r} gave {value} {where}; a finite number is needed", place_of(self.function))
        return self.weight * value


def find_term(name: str, function: str, weight: float = 1.0, options: Mapping[str, Any] | None = None) -> Term:
    """A term by the name of its function, with its options checked."""
    entry = terms.load(function)
    bound = entry.bind(options or {}, terms.kind)
    return Term(name, partial(entry.function, **bound) if bound else entry.function, weight)


@dataclass(frozen=True)
class Rewards:
    """The reward of a turn: the environment's, scaled, plus the terms."""

    scale: float = 1.0
    terms: Sequence[Term] = ()

    def __call__(self, turn: Turn, transition: Transition, trajectory: Trajectory) -> tuple[float, dict[str, float]]:
        """The sum, and its parts by name (only if there are terms)."""
        environment = self.scale * float(transition.reward)
        parts = {"environment": environment} | {term.name: term(turn, transition, trajectory) for term in self.terms} if self.terms else {}
        try:
            total = math.fsum(parts.values()) if parts else environment
        except (OverflowError, ValueError):  # infinities of both signs, or a sum beyond all floats
            total = math.nan
        if not abs(total) <= LARGEST_REWARD:
            shown = ", ".join(f"{name} {value:g}" for name, value in parts.items()) or f"{environment:g}"
            raise BadReward(
                f"the reward of turn {len(trajectory.turns)} of task {trajectory.task} cannot be learned from: {shown} "
                f"(within ±{LARGEST_REWARD:g} is needed; see env.reward_scale and the weights of reward terms)"
            )
        return total, parts
