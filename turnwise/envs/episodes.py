"""What our own environments share: an attempt that begins, goes on and ends, and its snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name

NOT_BEGUN = "step() was called before reset(): call reset(task) first"
OVER = "the episode is over: call reset(task) before the next step"
CLOSED = "the environment was closed: call reset(task) first"


class EpisodeEnv(ABC):
    """Plays one attempt at a time. A subclass says how an attempt begins (`_begin`), what an action does (`_play`), what is seen (`_see`),
    and what a snapshot keeps of it besides the task (`_kept`, and `_resume`, which goes on from there). `_over` is empty while it runs."""

    name: ClassVar[str]  # of the environment, in its snapshots
    depends_on: ClassVar[tuple[str, ...]] = ()  # the attributes that an attempt depends on in addition to its task

    def __init__(self) -> None:
        self._task: Task | None = None
        self._over = NOT_BEGUN

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._task, self._over = None, f"task {task.id!r} could not be started"  # until it has been
        self._begin(task, seed)
        self._task, self._over = task, ""
        return self._see()

    def step(self, action: str) -> Transition:
        self._running()
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        transition = self._play(action)
        if transition.done:
            self._over = self._over or OVER
        return transition

    def snapshot(self) -> bytes | None:
        """The task, and what has happened in this attempt."""
        task = self._running()
        return pack(self.name, {"task": task.to_json(), **self._kept()}, self._options())

    def restore(self, state: bytes) -> Observation:
        """Continue where a snapshot was taken."""
        kept = unpack(state, self.name, self._options())
        with restoring(self.name):
            self._over = "the snapshot could not be restored: call reset(task) first"  # until it has been
            task = Task.from_json(kept["task"])
            self._resume(task, kept)
            self._task, self._over = task, ""
            return self._see()

    def close(self) -> None:
        self._task, self._over = None, CLOSED

    def _running(self) -> Task:
        """The task of the running attempt. Before the start and after the end, an error."""
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        return self._task

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.depends_on}

    @abstractmethod
    def _begin(self, task: Task, seed: int) -> None: ...

    @abstractmethod
    def _play(self, action: str) -> Transition: ...

    @abstractmethod
    def _see(self) -> Observation: ...

    @abstractmethod
    def _kept(self) -> dict[str, Any]:
        """In JSON values."""

    @abstractmethod
    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None: ...


def check_choice(kind: str, value: Any, known: Collection[str]) -> None:
    """An error that suggests the closest match, unless an option has one of its known values."""
    if value not in known:
        raise unknown_name(kind, str(value), known)


def checked_count(value: Any, low: int, high: float, meaning: str) -> int:
    """An option that is a whole number from `low` to `high`; an error with its meaning for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TurnwiseError(f"{meaning}, not {value!r}")
    return value
