"""What an environment can do beyond `reset` and `step`: its optional members, read here and nowhere else.

`Capabilities(env)` is made when an environment is made. `Capabilities(cls)` reads what a class declares before there is an instance: its
splits, limits, instructions and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.data.tasks import Task


class Capabilities:
    """The optional members of one environment, or of its class. A member that it lacks is None; a text is then empty."""

    def __init__(self, env: Any):
        self._env = env

    # -- tasks and limits

    @property
    def tasks(self) -> Callable[..., Any] | None:
        """`tasks(split) -> TaskSet`; its parameter `n`, if it has one, is the number of tasks."""
        return self._method("tasks")

    @property
    def splits(self) -> Mapping[str, int | None] | None:
        """The number of tasks of each split; None for as many as requested."""
        declared: Mapping[str, int | None] | None = self._value("splits")
        return declared

    @property
    def max_turns(self) -> Any:
        """The turn limit of an episode, as the environment declares it. The checker reports one that is not a positive integer."""
        return self._value("max_turns")

    # -- what the agent is told, and how pages show it

    @property
    def instructions(self) -> str:
        return str(self._value("instructions") or "")

    @property
    def tools(self) -> Any:
        """The tools that prompts describe."""
        return self._value("tools") or ()

    @property
    def offered_tools(self) -> Callable[..., Any] | None:
        """`offered_tools(**options)`: the tools of an environment that depend on its options."""
        return self._method("offered_tools")

    @property
    def shows(self) -> str:
        """What observations look like, for pages: `terminal`."""
        return str(self._value("shows") or "")

    @property
    def plays_itself(self) -> bool:
        """Whether it is a program that calls the model by itself."""
        return bool(self._value("plays_itself"))

    # -- agents that come with it

    @property
    def expert(self) -> Callable[[Task], Sequence[str]] | None:
        """`expert(task)`: the actions that solve a task."""
        return self._method("expert")

    @property
    def expert_action(self) -> Callable[[], str | None] | None:
        """`expert_action()`: the best action now; None if the task can no longer be won."""
        return self._method("expert_action")

    @property
    def expert_words(self) -> Callable[[], str] | None:
        """`expert_words()`: what the expert says before its action."""
        return self._method("expert_words")

    @property
    def scripted_action(self) -> Callable[[], str | None] | None:
        """`scripted_action()`: the action of a simple rule that sees no more than an agent."""
        return self._method("scripted_action")

    @property
    def random_action(self) -> Callable[[int], str] | None:
        """`random_action(number)`: a plausible action, the same for the same number."""
        return self._method("random_action")

    # -- the state of an attempt

    @property
    def snapshot(self) -> Callable[[], bytes | None] | None:
        return self._method("snapshot")

    @property
    def restore(self) -> Callable[[bytes], Any] | None:
        return self._method("restore")

    @property
    def load_ahead(self) -> Callable[[Task], None] | None:
        """`load_ahead(task)`: loads what a reset to this task will need, in another thread while nothing is played."""
        return self._method("load_ahead")

    def close(self) -> None:
        """Close the environment, if it has something to close."""
        if (closing := self._method("close")) is not None:
            closing()

    def has_method(self, name: str) -> bool:
        """Whether there is a method of this name, for needs that a method of training declares by name (`env.expert_action`)."""
        return self._method(name) is not None

    def _method(self, name: str) -> Callable[..., Any] | None:
        member = self._value(name)
        return member if callable(member) else None

    def _value(self, name: str) -> Any:
        return getattr(self._env, name, None)
