"""What an environment can do beyond `reset` and `step`: its optional members, read here and nowhere else.

`Capabilities(env)` is made when an environment is made. `Capabilities(cls)` reads what a class declares before there is an instance: its
splits, limits, instructions and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from turnwise.data.tasks import Task

T = TypeVar("T")


class Method(Generic[T]):
    """An optional method of an environment; None if it has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, can: Capabilities, owner: type) -> T | None:
        method: T | None = can.method(self._name)
        return method


class Capabilities:
    """The optional members of one environment, or of its class. A member that it lacks is None; a text is then empty."""

    tasks = Method[Callable[..., Any]]()  # tasks(split) -> TaskSet; its parameter n, if it has one, is the number of tasks
    offered_tools = Method[Callable[..., Any]]()  # offered_tools(**options): the tools of an environment that depend on its options
    expert = Method[Callable[[Task], Sequence[str]]]()  # the actions that solve a task
    expert_action = Method[Callable[[], str | None]]()  # the best action now; None if the task can no longer be won
    expert_words = Method[Callable[[], str]]()  # what the expert says before its action
    scripted_action = Method[Callable[[], str | None]]()  # the action of a simple rule that sees no more than an agent
    random_action = Method[Callable[[int], str]]()  # a plausible action, the same for the same number
    snapshot = Method[Callable[[], bytes | None]]()
    restore = Method[Callable[[bytes], Any]]()
    load_ahead = Method[Callable[[Task], None]]()  # loads what a reset to a task will need, in another thread while nothing is played

    def __init__(self, env: Any):
        self._env = env

    def method(self, name: str) -> Any:
        """The method of this name; None if there is none."""
        member = getattr(self._env, name, None)
        return member if callable(member) else None

    def close(self) -> None:
        """Close the environment, if it has something to close."""
        if (closing := self.method("close")) is not None:
            closing()

    @property
    def splits(self) -> Mapping[str, int | None] | None:
        """The number of tasks of each split; None for as many as requested."""
        declared: Mapping[str, int | None] | None = getattr(self._env, "splits", None)
        return declared

    @property
    def max_turns(self) -> Any:
        """The turn limit of an episode, as the environment declares it. The checker reports one that is not a positive integer."""
        return getattr(self._env, "max_turns", None)

    @property
    def instructions(self) -> str:
        return str(getattr(self._env, "instructions", None) or "")

    @property
    def tools(self) -> Any:
        """The tools that prompts describe."""
        return getattr(self._env, "tools", None) or ()

    @property
    def shows(self) -> str:
        """What observations look like, for pages: `terminal`."""
        return str(getattr(self._env, "shows", None) or "")

    @property
    def plays_itself(self) -> bool:
        """Whether it is a program that calls the model by itself."""
        return bool(getattr(self._env, "plays_itself", None))
