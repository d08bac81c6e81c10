"""Tasks and task sets: what an agent is asked to do, with an identity that is the same on every machine.

A `Task` is one problem instance. A `TaskSet` is an ordered list of tasks with a content hash; a panel is a fixed part of one that an
evaluation uses. Nothing here depends on file order, on the number of workers or on a random generator's implementation: hashes are
BLAKE2b over canonical JSON, and a panel is chosen by hashing the seed together with each task's id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, overload

from turnwise.util.errors import TurnwiseError

TASK_LINE = "your task is"
LARGEST_REWARD = 1e150  # of an attempt at a task: squares of sums still fit into a 64-bit float. Here, because it needs no numpy


def task_line(text: str) -> str | None:
    """The line of a first observation that states the goal; none if there is no such line."""
    return next((line.strip() for line in text.splitlines() if line.strip().lower().startswith(TASK_LINE)), None)


@dataclass(frozen=True)
class Task:
    """One problem instance: `id` is unique in its environment, and `data` is what the environment needs to start it (JSON values).

    Tasks that are variants of one thing (a scenario, a customer's records, a product, a set of levels) name it as their `cluster`: they
    tend to end alike, so the intervals and tests of an evaluation count clusters and not tasks. None: the task stands for itself."""

    id: str
    split: str = "train"
    data: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None

    @cached_property
    def hash(self) -> str:
        """32 hex digits over id and data (not the split: the same problem in two splits has one hash, so that leaks are detected)."""
        try:
            text = json.dumps([self.id, dict(self.data)], sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TurnwiseError(f"task {self.id!r}: its data must be plain JSON values (text, numbers, lists, dicts): {error}") from None
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return hash((self.id, self.split))

    def to_json(self) -> dict[str, Any]:
        """As plain data, for files."""
        fields = {"id": self.id, "split": self.split, "data": dict(self.data)}
        return fields if self.cluster is None else fields | {"cluster": self.cluster}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Task:
        """The task that `to_json` gave."""
        cluster = fields.get("cluster")
        return cls(str(fields["id"]), str(fields["split"]), dict(fields["data"]), None if cluster is None else str(cluster))


class TaskSet(Sequence[Task]):
    """An ordered list of tasks, created from a list, or lazily from a count and a function of the index (`TaskSet.lazy`)."""

    def __init__(self, tasks: Iterable[Task], name: str = ""):
        self.name = name
        self._tasks: list[Task] = list(tasks)
        self._make: Callable[[int], Task] | None = None
        self._size = len(self._tasks)
        seen: dict[str, int] = {}
        for index, task in enumerate(self._tasks):
            if seen.setdefault(task.id, index) != index:
                raise TurnwiseError(f"task set {name!r}: tasks {seen[task.id]} and {index} have the same id {task.id!r}")

    @classmethod
    def lazy(cls, size: int, make: Callable[[int], Task], name: str = "") -> TaskSet:
        """A set of `size` tasks; `make(i)` creates task i on first use. `make` must be a pure function of i."""
        if size < 0:
            raise TurnwiseError(f"task set {name!r}: the size must not be negative, got {size}")
        new = cls((), name)
        new._size, new._make = size, make
        return new

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        if isinstance(index, slice):
            return self._subset(range(self._size)[index])
        if not -self._size <= index < self._size:
            raise IndexError(f"task {index} of a set of {self._size}")
        index %= self._size
        return self._make(index) if self._make else self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(self._size))

    def _subset(self, indices: Sequence[int]) -> TaskSet:
        if (make := self._make) is not None:
            return TaskSet.lazy(len(indices), lambda i: make(indices[i]), self.name)
        return TaskSet((self._tasks[i] for i in indices), self.name)

    @cached_property
    def hash(self) -> str:
        """32 hex digits over the tasks and their order."""
        digest = blake2b(digest_size=16)
        for task in self:
            digest.update(bytes.fromhex(task.hash))
        return digest.hexdigest()

    def panel(self, n: int, seed: int = 0) -> TaskSet:
        """`n` tasks of this set, the same on every machine for the same seed, in the set's order. A larger panel of the same seed
        contains the smaller one, and none contains a task twice."""
        places = self._places
        if not 0 < n <= len(places):
            size = f"{self._size} tasks" + ("" if len(places) == self._size else f", {len(places)} of them different")
            raise TurnwiseError(f"task set {self.name!r} has {size}: a panel can have 1 to {len(places)} of them, not {n}")
        if n == self._size:
            return self

        def rank(task: str) -> bytes:
            return blake2b(f"{seed}\x00{task}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

        return self._subset(sorted(places[task] for task in sorted(places, key=rank)[:n]))

    def distinct(self) -> TaskSet:
        """Every task once, at its first occurrence. A set of generated tasks may contain the same task twice."""
        return self if len(self._places) == self._size else self._subset(list(self._places.values()))

    @cached_property
    def _places(self) -> dict[str, int]:
        """The first position of each task, by its id."""
        places: dict[str, int] = {}
        for index, task in enumerate(self):
            places.setdefault(task.id, index)
        return places

    def overlap(self, other: TaskSet) -> list[str]:
        """The ids of tasks that both sets contain, by content hash."""
        theirs = {task.hash for task in other}
        return [task.id for task in self if task.hash in theirs]

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, {self._size} tasks)"
