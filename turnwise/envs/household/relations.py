"""Facts, indexed for the questions that the rules ask.

Things are small integers. A fact is a predicate with a tuple of things. The compiled rules never search: each question they ask is a
lookup in a `FactIndex`, which indexes one predicate by some of its positions and is narrowed to the types that the question's variables
allow. Indexes of predicates that no action changes are built once per house and shared by everything that plays in it. The others belong
to a state and follow its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

Fact = tuple[int, ...]
Container = Any  # a set of keys, a set of values, or a dict from keys to sets of values: see FactIndex


@dataclass(frozen=True)
class FactIndex:
    """An index of `predicate`: `key` positions lead to the values at the other positions; `kinds` narrows positions by type.

    A key or value of one position is a bare integer, of several a tuple. All positions in the key: the container is a set of keys. None:
    a set of values. Otherwise a dict from keys to sets of values.
    """

    predicate: str
    arity: int
    key: tuple[int, ...]
    kinds: tuple[frozenset[str] | None, ...]

    @cached_property
    def key_of(self) -> Callable[[Fact], Any]:
        return itemgetter(*self.key) if self.key else lambda fact: ()

    @cached_property
    def value_of(self) -> Callable[[Fact], Any]:
        rest = tuple(i for i in range(self.arity) if i not in self.key)
        return itemgetter(*rest) if rest else lambda fact: ()

    def build(self, facts: Iterable[Fact], types: Sequence[str]) -> Container:
        taken = [fact for fact in facts if self.takes(fact, types)] if self.narrow else [fact for fact in facts if len(fact) == self.arity]
        if len(self.key) == self.arity:
            return set(map(self.key_of, taken))
        if not self.key:
            return set(map(self.value_of, taken))
        container: dict[Any, set[Any]] = {}
        key_of, value_of = self.key_of, self.value_of
        for fact in taken:
            container.setdefault(key_of(fact), set()).add(value_of(fact))
        return container

    @cached_property
    def narrow(self) -> bool:
        return any(kinds is not None for kinds in self.kinds)

    def takes(self, fact: Fact, types: Sequence[str]) -> bool:
        if len(fact) != self.arity:
            return False
        for thing, kinds in zip(fact, self.kinds, strict=True):  # noqa: SIM110  a loop is twice as fast as all() here
            if kinds is not None and types[thing] not in kinds:
                return False
        return True

    def put(self, container: Container, fact: Fact, types: Sequence[str]) -> None:
        if not self.takes(fact, types):
            return
        if len(self.key) == self.arity:
            container.add(self.key_of(fact))
        elif not self.key:
            container.add(self.value_of(fact))
        else:
            container.setdefault(self.key_of(fact), set()).add(self.value_of(fact))

    def drop(self, container: Container, fact: Fact) -> None:
        if len(fact) != self.arity:
            return
        if len(self.key) == self.arity:
            container.discard(self.key_of(fact))
        elif not self.key:
            container.discard(self.value_of(fact))
        elif (values := container.get(self.key_of(fact))) is not None:
            values.discard(self.value_of(fact))

    def copy(self, container: Container) -> Container:
        if isinstance(container, dict):
            return {key: set(values) for key, values in container.items()}
        return set(container)
