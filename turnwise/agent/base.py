"""The agent protocol: how a turn's prompt is built from the history, and how a response becomes an action.

A `Context` belongs to one trajectory. The collector calls `start` with the first observation, and then alternates between `prompt` (the
token ids to complete) and `record`, with the sampled response, its parse and the next observation. A custom context is one class with
these three methods, named in the recipe as `path/to/file.py:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.data.images import Picture
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation


@dataclass(frozen=True, slots=True)
class Parsed:
    """A response as thought and action. `valid` as in the paper: it could be parsed (and, optionally, the action is admissible)."""

    action: str
    thought: str = ""
    valid: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids to complete. `dropped` counts history entries that were left out because the prompt would have been too long; `fits` is
    false if even the shortest form exceeds the limit (the trajectory then ends with the stop reason "context limit").
    `messages` is the same prompt as role and content, for servers that take no token ids; a custom context may omit it.
    `images` are the images whose tokens are in `ids`, in order."""

    ids: Sequence[int]
    dropped: int = 0
    fits: bool = True
    messages: tuple[Mapping[str, str], ...] = ()
    images: tuple[Picture, ...] = ()


class Context(Protocol):
    """How prompts grow."""

    def start(self, task: Task, observation: Observation) -> None: ...

    def prompt(self) -> Prompt: ...

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None: ...
