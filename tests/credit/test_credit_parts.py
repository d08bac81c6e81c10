"""What an algorithm's credit is the sum of: said by itself, not by a list of names elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from page_runs import group

import turnwise as tw
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.report.warnings import compares_states

ROLLOUTS = Rollouts.from_trajectories([*group(0, "a"), *group(1, "b")])
WITH_PARTS = [entry.name for entry in tw.credit.algorithms if entry.parts and tw.credit.stands_alone(entry)]


@pytest.mark.parametrize("name", WITH_PARTS)
def test_parts_add_up_to_the_credit(name: str) -> None:
    weighed = {option: 0.5 + number for number, option in enumerate(tw.credit.algorithms[name].parts.values()) if option is not None}
    total = tw.credit.compute(name, ROLLOUTS, **weighed)
    parts = tw.credit.split(name, ROLLOUTS, **weighed)
    assert tuple(parts) == tw.credit.parts(name) and np.abs(total).sum() > 0
    np.testing.assert_allclose(sum(weight * column for column, weight in parts.values()), total, rtol=1e-5, atol=1e-6)
    assert [weight for _, weight in parts.values()] == (list(weighed.values()) or [1.0])


def test_the_parts_of_gigpo_are_those_that_explain_tells() -> None:
    why, parts = tw.credit.explain(ROLLOUTS, gamma=0.9), tw.credit.split("gigpo", ROLLOUTS, gamma=0.9, omega=3.0)
    for name in ("episode", "step"):
        np.testing.assert_allclose(parts[name][0], why[name], rtol=1e-5, atol=1e-6)


def test_algorithms_that_compare_whole_attempts_have_no_step_credit() -> None:
    assert "step" in tw.credit.parts("gigpo") and "step" not in tw.credit.parts("grpo")
    assert tw.credit.parts("nobody knows this one") == ()
    assert compares_states("gigpo") and not compares_states("grpo") and not compares_states("nobody knows this one")


@pytest.fixture
def mine() -> Iterator[str]:
    @tw.credit.register("mine_by_state", parts={"step": None})
    def mine_by_state(r: Rollouts) -> Floats:
        """A test's own."""
        return np.zeros(len(r))

    yield "mine_by_state"
    tw.credit.algorithms._entries.pop("mine_by_state")


def test_an_algorithm_of_ones_own_says_what_it_compares(mine: str) -> None:
    assert compares_states(mine) and tw.credit.split(mine, ROLLOUTS)["step"][1] == 1.0
