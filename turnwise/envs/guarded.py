"""Environments in numbered slots of one process, each behind a guard: whatever one of them raises is a fault of its slot alone.

The pool plays these in its own process, and a worker process plays them for a pool, so both behave alike.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from turnwise.data.tasks import Task
from turnwise.envs.answers import BadAnswer, read_observation, read_snapshot, read_transition
from turnwise.envs.base import Transition
from turnwise.envs.blame import one_line, own_lines
from turnwise.util.errors import TurnwiseError


class Failure(NamedTuple):
    """What came of a request that failed: one line, the rest, and the part of it that is the user's own."""

    message: str
    traceback: str = ""
    own_lines: str = ""


class Kept(NamedTuple):
    """A snapshot; `state` is None where the environment has none to give."""

    state: bytes | None


Answer = Transition | Failure | Kept  # to a reset and a restore too: their transition holds the observation where the agent stands


def failure(error: BaseException) -> Failure:
    """The answer for an exception that an environment raised."""
    lines = error.lines if isinstance(error, BadAnswer) else own_lines(error)
    return Failure(one_line(error), "".join(traceback.format_exception(error)), lines)


class GuardedEnvs:
    """The environments of one process by slot, created at their first start, and again after a fault."""

    def __init__(self, factory: Callable[[], Any]):
        self._factory = factory
        self._envs: dict[int, Any] = {}

    def reset(self, slot: int, task: Task, seed: int) -> Answer:
        try:
            env = self._env(slot)
            return Transition(read_observation(env.reset(task, seed), env))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment that calls sys.exit must not end the run
            return self._drop(slot, error)

    def restore(self, slot: int, state: bytes) -> Answer:
        """Start a slot from a snapshot."""
        try:
            env = self._env(slot)
            if not callable(method := getattr(env, "restore", None)):
                raise TurnwiseError(f"{type(env).__name__} has no restore(state): play the actions again instead")
            return Transition(read_observation(method(state), env, "restore"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def snapshot(self, slot: int) -> Answer:
        """The state of a slot's attempt."""
        try:
            env = self._envs[slot]
            method = getattr(env, "snapshot", None)
            return Kept(read_snapshot(method(), env) if callable(method) else None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._drop(slot, error)

    def _env(self, slot: int) -> Any:
        if slot not in self._envs:
            self._envs[slot] = self._factory()
        return self._envs[slot]

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

    def load_ahead(self, task: Task) -> None:
        """Load what a reset to this task will need, if the environment can. An error is one of that reset, which has it too."""
        env = next(iter(self._envs.values()), None)
        if callable(method := getattr(env, "load_ahead", None)):
            with contextlib.suppress(Exception):
                method(task)

    def close(self) -> None:
        for slot in list(self._envs):
            self._close(self._envs.pop(slot))

    @staticmethod
    def _close(env: Any) -> None:
        # Closing is a courtesy: an environment that is broken already may well fail here too.
        with contextlib.suppress(Exception, SystemExit, GeneratorExit):
            if callable(closing := getattr(env, "close", None)):
                closing()
