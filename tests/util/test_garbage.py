"""Python's search for garbage: rarer while attempts are played, and as it was before, whatever happens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from turnwise.util.garbage import rare_searches


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)  # as Python starts, whatever other tests did
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    if frozen:
        gc.freeze()


class Knot:
    """Holds itself."""

    def __init__(self) -> None:
        self.own = self


def test_searches_are_rare_inside_and_as_before_afterwards_also_after_an_error() -> None:
    with pytest.raises(RuntimeError), rare_searches():
        assert gc.get_threshold() == (250_000, 10, 10)
        raise RuntimeError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 1_000_000])
def test_a_users_own_choice_stays(own: int) -> None:
    gc.set_threshold(own, 10, 10)
    with rare_searches():
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold()[0] == own


def test_cycles_are_still_found_inside() -> None:
    alive: weakref.WeakSet[Knot] = weakref.WeakSet()
    with rare_searches(containers=1000):
        for _ in range(20_000):
            alive.add(Knot())
    assert len(alive) < 15_000
