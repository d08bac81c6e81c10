"""Values from fresh attempts in the lab: what VinePPO reads there."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.lab.fresh import fresh_values
from turnwise.lab.lines import choose
from turnwise.lab.problems import make
from turnwise.lab.sample import draw, sample, stack
from turnwise.lab.study import make_case, measure_case, views_of
from turnwise.lab.values import action_values, skilled_policy, state_values


@pytest.mark.parametrize("name", ["chain", "corridor", "bifurcation"])
def test_the_mean_of_many_fresh_attempts_is_the_exact_value(name: str) -> None:
    problem = make(name)
    policy = skilled_policy(problem, 0.6)
    exact = state_values(action_values(problem, policy), policy)
    batch = sample(problem, policy[None], stack([draw(problem, 2, 4, np.random.default_rng(0))]))
    found = fresh_values(problem, policy[None], batch.run, batch.t, batch.state, np.random.default_rng(1), attempts=2000)
    np.testing.assert_allclose(found, exact[batch.t, batch.state], atol=0.15 * max(1.0, float(np.abs(exact).max())))


def test_credit_from_fresh_attempts_is_nearer_to_the_truth_than_returns() -> None:
    case = make_case("chain", make("chain"), 0.6)
    found = measure_case(case, choose(["grpo", "vineppo", "t_star"]), (4,), 32, 3, 0, lambda: None)
    assert found["vineppo"]["4"]["correlation"]["mean"] > found["grpo"]["4"]["correlation"]["mean"]
    assert found["t_star"]["4"]["correlation"]["mean"] > found["grpo"]["4"]["correlation"]["mean"]


def test_fresh_attempts_are_made_only_for_lines_that_read_them_and_change_no_other() -> None:
    case = make_case("chain", make("chain"), 0.6)
    [plain, *_], [more, *_] = (views_of(case, 2, 8, 1, 0, fresh)[1] for fresh in (False, True))
    assert not plain.rollouts().has("turn.mc_value") and more.rollouts().has("turn.mc_value")
    [grpo, vine] = choose(["grpo", "vineppo"])
    assert (grpo.is_fresh, vine.is_fresh) == (False, True)
    np.testing.assert_array_equal(grpo.credit(plain), grpo.credit(more))
