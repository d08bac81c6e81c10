"""The environment protocol, and its three small records.

An environment plays one task at a time. The task fixes the initial state; `seed` drives all randomness after it. Calling `step` before
`reset` or after the end raises `EpisodeOver`. `capabilities.py` lists the optional members, which are used if present. An environment with
`snapshot` and `restore` is `Restorable`: an attempt can start from the middle of another one without playing its actions again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError


class EpisodeOver(TurnwiseError):
    """`step` was called before `reset` or after the episode's end."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees. `images` are RGB arrays (uint8, height × width × 3). `anchor` is a key of the state it is in (text, bytes,
    integer or image); None means the text itself or, if there are images, a hash of text and images. `seat`: whose turn it is, in an
    environment that is played by several; each seat sees its own observations only."""

    text: str
    images: tuple[Any, ...] = ()
    actions: tuple[str, ...] | None = None
    anchor: Any = None
    seat: int = 0

    @property
    def key(self) -> Any:
        """The anchor; by default the text, or a hash of text and images."""
        if self.anchor is not None:
            return self.anchor
        if not self.images:
            return self.text
        from turnwise.data.images import content_hash  # with numpy, which most environments do not need

        return content_hash(self.images, self.text)


def without(actions: Sequence[str], hidden: Sequence[str]) -> tuple[str, ...]:
    """The actions without those that match a pattern; `*` in a pattern matches any text."""
    pattern = _pattern(tuple(hidden))
    return tuple(action for action in actions if not pattern.fullmatch(action)) if hidden else tuple(actions)


@lru_cache(maxsize=64)
def _pattern(hidden: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in hidden), re.DOTALL)


class Share(NamedTuple):
    """What a step brought a seat that did not make it."""

    reward: float = 0.0
    success: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """The outcome of one action. `success` refers to the task and counts when `done`; `info` carries anything else worth logging;
    numbers under `info["measures"]` on the last step (a score, F1) are reported by evaluations as means over attempts. `reward` and
    `success` are those of the seat that acted; `others` has those of further seats, in an environment that is played by several."""

    observation: Observation
    reward: float = 0.0
    done: bool = False
    success: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[int, Share] = field(default_factory=dict)


@runtime_checkable
class Env(Protocol):
    """The two methods that every environment has."""

    def reset(self, task: Task, seed: int = 0) -> Observation: ...

    def step(self, action: str) -> Transition: ...


@runtime_checkable
class Restorable(Protocol):
    """The two optional methods that save a branch the replay of its past.

    `snapshot` returns the state of the running attempt: a few kilobytes of JSON or another safe encoding, never a pickle; None if this
    state cannot be saved. It changes nothing. Before `reset` and after the end it raises `EpisodeOver`. `restore` brings any instance of
    the same environment to that state, even one that was never reset, and returns the observation there: the same text, actions and
    anchor. Afterwards `step` continues exactly as it would have continued there, randomness included. Bytes that are not a snapshot of
    this environment with these options raise a `TurnwiseError`. `snapshots.py` has an encoding for this.
    """

    def snapshot(self) -> bytes | None: ...

    def restore(self, state: bytes) -> Observation: ...
