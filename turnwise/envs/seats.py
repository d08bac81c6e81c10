"""Environments in numbered slots of one process, each behind a guard: whatever one of them raises is a fault of its slot alone.

The pool plays these in its own process, and a worker process plays them for a pool, so both behave alike.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from turnwise.data.tasks import Task
from turnwise.envs.answers import BadAnswer, read_observation, read_transition
from turnwise.envs.base import Transition
from turnwise.envs.blame import one_line, own_lines


class Failure(NamedTuple):
    """What came of a request that failed: one line, the rest, and the part of it that is the user's own."""

    message: str
    traceback: str = ""
    own_lines: str = ""


Answer = Transition | Failure  # to a reset too: its transition holds the first observation


def failure(error: BaseException) -> Failure:
    """The answer for an exception that an environment raised."""
    lines = error.lines if isinstance(error, BadAnswer) else own_lines(error)
    return Failure(one_line(error), "".join(traceback.format_exception(error)), lines)


class Seats:
    """The environments of one process by slot, made on their first reset and made anew after a fault."""

    def __init__(self, factory: Callable[[], Any]):
        self._factory = factory
        self._envs: dict[int, Any] = {}

    def reset(self, slot: int, task: Task, seed: int) -> Answer:
        try:
            env = self._envs.get(slot)
            if env is None:
                env = self._envs[slot] = self._factory()
            return Transition(read_observation(env.reset(task, seed), env))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment that calls sys.exit must not end the run
            return self._drop(slot, error)

    def step(self, slot: int, action: str) -> Answer:
        try:
            env = self._envs[slot]
            return read_transition(env.step(action), env)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def _drop(self, slot: int, error: BaseException) -> Failure:
        answer = failure(error)
        self._close(self._envs.pop(slot, None))
        return answer

    def close(self) -> None:
        for slot in list(self._envs):
            self._close(self._envs.pop(slot))

    @staticmethod
    def _close(env: Any) -> None:
        # Closing is a courtesy: an environment that is broken already may well fail here too.
        with contextlib.suppress(Exception, SystemExit, GeneratorExit):
            if callable(closing := getattr(env, "close", None)):
                closing()
