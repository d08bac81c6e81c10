"""What loses the tasks of an agent, from its attempts: findings with evidence, waste, and where attempts of a task part.

This file has what a diagnosis consists of. Every class is frozen and serialises with `dataclasses.asdict` (`Diagnosis.to_json`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from turnwise.data.rollouts import Trajectory

Label = int | str
Kind = Literal["state", "result", "tool", "error", "waste"]
KINDS: dict[Kind, str] = {
    "state": "an action taken from a state, against the other actions taken there",
    "result": "what a call returned, against the other results of the same call",
    "tool": "attempts that used a tool, against those that did not",
    "error": "attempts that saw an error message, against those that did not",
    "waste": "attempts with a loop, a repeated call or an ignored error, against those without",
}


@dataclass(frozen=True)
class Interval:
    """An estimate and its simultaneous interval: all intervals of a kind hold together with the probability 1 − level / kinds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One side of a comparison: what was done or returned, how many attempts did it, and how many of them won."""

    text: str
    attempts: int
    won: int


@dataclass(frozen=True)
class Place:
    """A turn of an attempt; `t` counts from 0."""

    trajectory: Label
    t: int


@dataclass(frozen=True)
class Finding:
    """One comparison whose outcome chance does not explain.

    where       the state's text (an example of it), the call, or what the waste is; bounded
    scope       "task": the comparison is within one task; "equal": within each of several tasks, at equal states; "similar": the same,
                at states that are equal but for numbers and names (`where` is their common form)
    task        the task, if there is only one
    worse       the choice that loses; better: the choice to make instead (None: not to do it)
    choices     all choices at this place, the most frequent first; at most ten
    difference  the share of won attempts with the better choice minus that with the worse, within tasks
    gain        tasks won per 100 attempts if the worse choice were never made and the better always, were the difference its effect
    p           exact, two-sided, within tasks; `adjusted` accounts for all comparisons of the kind and for the kinds
    turns       turns at which a lost attempt made the worse choice; at most five
    """

    kind: Kind
    where: str
    scope: Literal["task", "equal", "similar"]
    task: Label | None
    worse: Choice
    better: Choice | None
    choices: tuple[Choice, ...]
    difference: Interval
    gain: Interval
    p: float
    adjusted: float
    tasks: int
    attempts: int
    turns: tuple[Place, ...]


@dataclass(frozen=True)
class Waste:
    """Turns that bring nothing new. `share` is of all turns, its interval over tasks; `attempts` have such a turn, `won` of them won."""

    kind: Literal["loop", "repeated call", "ignored error"]
    turns: int
    share: Interval
    attempts: int
    won: int
    examples: tuple[Place, ...]


@dataclass(frozen=True)
class Fork:
    """The earliest state of a task from which attempts that won and attempts that lost went different ways. A description, not a test."""

    task: Label
    t: int
    where: str
    choices: tuple[Choice, ...]
    turns: tuple[Place, ...]


@dataclass(frozen=True)
class Unsaid:
    """What was not tested, why, and how many attempts at each task it would need (None: no number of attempts would do)."""

    what: str
    why: str
    attempts: int | None


@dataclass(frozen=True)
class Diagnosis:
    """`findings` are ranked: the one whose gain is large for certain comes first. `compared` is the number of comparisons of each kind.
    `outcome` says what winning means: "success", or a return above the median of the task where success does not vary."""

    tasks: int
    attempts: int
    turns: int
    won: int
    outcome: Literal["success", "return above the task's median", "none"]
    level: float
    compared: dict[str, int]
    findings: tuple[Finding, ...]
    waste: tuple[Waste, ...]
    forks: tuple[Fork, ...]
    unsaid: tuple[Unsaid, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def diagnose(trajectories: Sequence[Trajectory], *, level: float = 0.05) -> Diagnosis:
    """Which turns lose the tasks. `level` bounds the probability that even one finding of the whole report is chance. All tests are exact:
    nothing is drawn, so there is no seed."""
    raise NotImplementedError
