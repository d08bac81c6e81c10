"""Seeds and orders: functions of names alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turnwise.util.seeds import Order, derive


def test_derived_seeds_are_the_same_on_every_machine_and_differ_by_name() -> None:
    assert derive(0, "sample", 1, 2) == 8484803630517938814
    assert len({derive(0, "a", 1), derive(0, "a", 2), derive(0, "b", 1), derive(1, "a", 1), derive(0, "a", "1", "")}) == 5
    assert all(0 <= derive(seed, "x") < 2**63 for seed in range(100))


@given(st.integers(1, 300), st.integers(0, 5))
def test_every_round_of_an_order_visits_each_item_once(size: int, seed: int) -> None:
    order = Order(size, seed)
    rounds = [[order[place] for place in range(k * size, (k + 1) * size)] for k in range(3)]
    assert all(sorted(visited) == list(range(size)) for visited in rounds)


def test_rounds_and_seeds_differ_and_an_order_may_be_plain() -> None:
    one, two = Order(1000, 0), Order(1000, 1)
    first = [one[i] for i in range(1000)]
    assert first != [one[i] for i in range(1000, 2000)] and first != [two[i] for i in range(1000)]
    assert sum(a == b for a, b in zip(first, sorted(first), strict=True)) < 20  # it really shuffles
    assert [Order(3, 0, shuffle=False)[i] for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_an_order_over_very_many_items_costs_nothing_to_make() -> None:
    order = Order(10**12, 3)
    assert len({order[i] for i in range(1000)}) == 1000


def test_torch_draws_from_the_seed_inside_and_goes_on_as_before_afterwards() -> None:
    import torch

    from turnwise.learn.device import rng_scope

    torch.manual_seed(5)
    with rng_scope(3):
        inside = torch.rand(4)
    afterwards = torch.rand(4)
    assert torch.equal(afterwards, torch.rand(4, generator=torch.manual_seed(5)))
    assert torch.equal(inside, torch.rand(4, generator=torch.manual_seed(3)))
