"""Planned attempts: the task, the group, the seeds, and the position in an earlier attempt from which they start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True, slots=True)
class Branch:
    """A position in a finished attempt: the state before its turn `t`."""

    trajectory: Trajectory
    t: int

    def __post_init__(self) -> None:
        turns = len(self.trajectory.turns)
        if not 0 <= self.t <= turns:
            raise TurnwiseError(f"trajectory {self.trajectory.id!r} has {turns} turns: it cannot be branched at turn {self.t}")


class ChangingHint(ABC):
    """A hint that changes with what the attempt responds. Every attempt gets a copy of its own."""

    @abstractmethod
    def __call__(self, observation: str) -> str:
        """The text for an observation."""

    @abstractmethod
    def on_response(self, response: str) -> None:
        """The attempt has responded."""


Hint = str | Callable[[str], str] | ChangingHint  # a text, or what it is for an observation


@dataclass(frozen=True, slots=True)
class Start:
    """One planned attempt: the task, the group it is compared in, its number in the batch, the environment's seed, and the seed of
    everything the policy draws. With a `branch`, the attempt starts there: with the seed and the first turns of that trajectory.

    max_turns   a turn limit of this attempt, shared turns included, if it is lower than that of the run
    hint        a text that the agent is shown before the first observation of a prompt; a function is asked on every turn with the text of
                the observation
    temperature of the responses, if it is not that of the run; 0: greedy
    branchable  whether later attempts may start in the middle of this one; false saves the snapshots of its states
    forget      the prompts to learn with are those without the hint: the policy saw it, and learns to do without
    """

    task: Task
    group: int | str
    number: int
    env_seed: int = 0
    policy_seed: int = 0
    branch: Branch | None = None
    max_turns: int | None = None
    hint: Hint = ""
    forget: bool = False
    temperature: float | None = None
    branchable: bool = True
