"""What an objective or a schedule of the user's own may do in addition to being called: each hook is a protocol.

An objective or schedule that is a class lives as long as a run. It may have `begin(progress)`, called before every update with the share of
the run that is behind, `observe(metrics)`, called after it, and `state()` with `load_state(state)`: what `state` gives is plain JSON and is
saved in the checkpoint, so that a killed and resumed run gives the same result as an uninterrupted one. An objective or an importance
correction may have `prepare(columns)`, called with all tokens of a mini-batch before it is cut into micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, Protocol, runtime_checkable

from turnwise.methods.steps import Step
from turnwise.util.errors import TurnwiseError


@runtime_checkable
class Begins(Protocol):
    def begin(self, progress: float) -> None: ...


@runtime_checkable
class Observes(Protocol):
    def observe(self, metrics: dict[str, float]) -> None: ...


@runtime_checkable
class Prepares(Protocol):
    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any] | None: ...


@runtime_checkable
class GivesState(Protocol):
    def state(self) -> Any: ...


@runtime_checkable
class TakesState(Protocol):
    def load_state(self, state: Any) -> None: ...


def states_of(objects: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """The states of these objects, by kind with their names, for a resume; those without state are left out."""
    states = {}
    for kind, (name, user_object) in objects.items():
        if not isinstance(user_object, GivesState):
            continue
        try:
            states[kind] = {"name": name, "state": json.loads(json.dumps(user_object.state()))}
        except (TypeError, ValueError) as error:
            raise TurnwiseError(
                f"{kind} {name!r}: state() returned what cannot be kept as JSON ({error}): return numbers, texts, lists and dictionaries"
            ) from None
    return states


def load_states(objects: Mapping[str, tuple[str, Any]], states: Mapping[str, Any]) -> None:
    """Give the objects back what `states_of` saved. A state of an object with another name is ignored."""
    for kind, (name, user_object) in objects.items():
        saved = states.get(kind)
        if saved is None or saved["name"] != name:
            continue
        if not isinstance(user_object, TakesState):
            raise TurnwiseError(f"{kind} {name!r} gave a state to the checkpoint and has no load_state(state) to take it back")
        user_object.load_state(saved["state"])


class Steps:
    """A schedule's steps, one after another. `known` are those that are known in advance, and `count` is their number; those of a
    generator are not known, and it receives the metrics of each step."""

    def __init__(self, steps: Any, name: str):
        self._name = name
        self.known: list[Step] = list(steps) if isinstance(steps, Sequence) else []
        self.count = len(self.known) if isinstance(steps, Sequence) else None
        self._taken = 0
        if not isinstance(steps, Iterable):
            raise TurnwiseError(f"schedule {name!r} returned {type(steps).__name__}: a list or a generator of Step(…) is needed")
        self._steps: Iterator[Any] = iter(steps)

    @property
    def coming(self) -> Step | None:
        """The step that `next` will give, if it is known."""
        return self.known[self._taken] if self._taken < len(self.known) else None

    def next(self, metrics: Mapping[str, float] | None = None) -> Step | None:
        """The next step; None after the last. `metrics` are those of the step before."""
        try:
            receives = metrics is not None and self._receives_metrics()
            step = self._steps.send(dict(metrics)) if receives else next(self._steps)  # type: ignore[attr-defined, arg-type]
        except StopIteration:
            return None
        self._taken += 1
        if not isinstance(step, Step):
            raise TurnwiseError(f"schedule {self._name!r} gave {type(step).__name__} as a step: Step(…) is needed")
        return step

    def _receives_metrics(self) -> bool:
        """Whether a generator waits at a `yield` of its own, and not inside `yield from` a list, which takes no metrics."""
        inner: Any = self._steps
        while isinstance(inner, GeneratorType) and inner.gi_yieldfrom is not None:
            inner = inner.gi_yieldfrom
        return isinstance(inner, Generator)

    def close(self) -> None:
        """No further step will be taken."""
        if isinstance(self._steps, Generator):
            self._steps.close()
