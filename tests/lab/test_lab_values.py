"""The lab's ground truth: dynamic programming against the enumeration of all trajectories, the sampler against exact probabilities."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import turnwise as tw
from turnwise.lab.problems import DEFAULT, Problem, make
from turnwise.lab.sample import draw, sample, stack
from turnwise.lab.values import (
    action_values,
    best_return,
    exact_gradient,
    expected_return,
    occupancy,
    skilled_policy,
    state_values,
)

TINY = (
    "bifurcation:branching=2:delay=2",
    "corridor:length=3:horizon=4",
    "grid:size=3:horizon=3:slip=0",
    "grid:size=3:horizon=2:slip=0.4",
    "chain:length=4:branching=2",
    "tree:depth=2:branching=3",
)


def random_policy(problem: Problem, seed: int = 0) -> np.ndarray:
    weight = np.random.default_rng(seed).random((problem.states, problem.actions)) + 0.1
    return weight / weight.sum(axis=1, keepdims=True)


def batch_of(problem: Problem, policy: np.ndarray, groups: int, size: int, seed: int = 0):
    return sample(problem, policy[None], stack([draw(problem, groups, size, np.random.default_rng(seed))]))


def enumerated(problem: Problem, policy: np.ndarray, t: int, state: int, action: int) -> float:
    """The mean return from here, over every sequence of outcomes and further actions there is."""
    left = problem.horizon - t
    outcomes = range(problem.next_state.shape[2])
    total = 0.0
    for first, *rest in product(outcomes, *(product(range(problem.actions), outcomes) for _ in range(left - 1))):
        probability, gained, here, act = 1.0, 0.0, state, action
        steps = [(None, first), *rest]
        for chosen, outcome in steps:
            if problem.terminal[here]:
                # the sequence is longer than the trajectory: count it once, for its first continuation only
                if (chosen, outcome) != (0, 0):
                    probability = 0.0
                continue
            if chosen is not None:
                act = chosen
                probability *= policy[here, act]
            probability *= problem.probability[here, act, outcome]
            gained += problem.reward[here, act, outcome]
            here = problem.next_state[here, act, outcome]
        total += probability * gained
    return total


@pytest.mark.parametrize("name", TINY)
def test_action_values_equal_the_enumeration_of_all_trajectories(name: str) -> None:
    problem = make(name)
    policy = random_policy(problem)
    q = action_values(problem, policy)
    running = [state for state in range(problem.states) if not problem.terminal[state]]
    for t in range(problem.horizon):
        for state in running[:: max(1, len(running) // 6)]:
            for action in range(problem.actions):
                assert q[t, state, action] == pytest.approx(enumerated(problem, policy, t, state, action), abs=1e-12)


@pytest.mark.parametrize("name", DEFAULT)
def test_expected_return_is_the_value_of_the_start_and_never_above_the_best(name: str) -> None:
    problem = make(name)
    policy = random_policy(problem)
    value = state_values(action_values(problem, policy), policy)[0] @ problem.start
    assert float(expected_return(problem, policy)) == pytest.approx(value)
    assert value < best_return(problem)


def test_exact_gradient_equals_finite_differences() -> None:
    problem = make("grid:size=3:horizon=6")
    logits = np.random.default_rng(1).normal(size=(problem.states, problem.actions))

    def value(shifted: np.ndarray) -> float:
        weight = np.exp(shifted)
        return float(expected_return(problem, weight / weight.sum(axis=1, keepdims=True)))

    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    exact = exact_gradient(problem, policy)
    for state, action in ((0, 0), (0, 3), (2, 1), (5, 2)):
        step = np.zeros_like(logits)
        step[state, action] = 1e-5
        assert exact[state, action] == pytest.approx((value(logits + step) - value(logits - step)) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("name", DEFAULT)
def test_sampled_visits_match_the_exact_occupancy(name: str) -> None:
    problem = make(name)
    policy = random_policy(problem)
    trajectories = 6000
    batch = batch_of(problem, policy, trajectories, 1)
    seen = np.zeros((problem.horizon, problem.states))
    np.add.at(seen, (batch.t, batch.state), 1)
    exact = occupancy(problem, policy)
    tolerance = 6 * np.sqrt(exact * (1 - exact) / trajectories) + 2e-3
    assert (np.abs(seen / trajectories - exact) < tolerance).all()
    assert seen[exact == 0].sum() == 0


def test_sampled_actions_rewards_and_returns_match_the_tables() -> None:
    problem = make("chain")
    policy = random_policy(problem)
    batch = batch_of(problem, policy, 500, 8)
    first = batch.state == 0
    taken = np.bincount(batch.action[first], minlength=problem.actions) / first.sum()
    assert np.abs(taken - policy[0]).max() < 0.04
    returns = np.bincount(batch.trajectory, weights=batch.reward)
    assert returns.mean() == pytest.approx(float(expected_return(problem, policy)), abs=0.25)
    assert batch.reward.std() > 1  # the noise is there
    assert batch.returns_to_go()[batch.t == 0] == pytest.approx(returns)


def test_a_group_shares_its_first_state_and_trajectories_end_where_they_should() -> None:
    problem = make("grid")
    batch = batch_of(problem, random_policy(problem), 40, 4)
    starts = batch.state[batch.t == 0].reshape(40, 4)
    assert (starts == starts[:, :1]).all()
    assert len(np.unique(starts)) == 3
    assert not problem.terminal[batch.state].any()
    won = np.zeros(160, np.bool_)
    won[batch.trajectory] = batch.success
    assert np.array_equal(won, np.bincount(batch.trajectory, weights=batch.reward) == 1)


@pytest.mark.parametrize("name", ["grid", "chain", "tree", "corridor:aliasing=2:recurrence=0.5"])
def test_every_algorithm_gives_the_same_credit_as_on_checked_columns(name: str) -> None:
    problem = make(name)
    batch = batch_of(problem, random_policy(problem), 5, 4)
    value = np.random.default_rng(3).random(len(batch.t))
    quick = batch.rollouts(0, value)
    names = ("group", "trajectory", "t", "reward", "anchor", "next_anchor", "success", "value", "tokens", "token_value")
    checked = tw.Rollouts.from_columns(**{name: getattr(quick, name) for name in names})
    for entry in filter(tw.credit.stands_alone, tw.credit.algorithms):
        assert np.array_equal(tw.credit.compute(entry.name, quick), tw.credit.compute(entry.name, checked)), entry.name
    assert tw.credit.diagnose(quick) == tw.credit.diagnose(checked)


def test_aliasing_and_recurrence_change_anchors_and_nothing_else() -> None:
    problem = make("corridor")
    policy = random_policy(problem)
    plain = batch_of(problem, policy, 8, 8)
    merged = batch_of(make("corridor:aliasing=2"), policy, 8, 8)
    fresh = batch_of(replace(problem, recurrence=0.0), policy, 8, 8)
    for other in (merged, fresh):
        for column in ("group", "trajectory", "t", "state", "action", "reward", "success"):
            assert np.array_equal(getattr(plain, column), getattr(other, column))
    assert np.array_equal(merged.anchor, plain.state // 2)  # the key is hidden, the cell is not
    assert len(np.unique(fresh.anchor)) == len(fresh.anchor)


def test_skill_is_the_share_of_best_actions_and_raises_the_return() -> None:
    problem = make("grid")
    returns = [float(expected_return(problem, skilled_policy(problem, skill))) for skill in (0.0, 0.3, 0.6, 0.9)]
    assert returns == sorted(returns) and returns[-1] > 3 * returns[0]
    assert np.allclose(skilled_policy(problem, 0.0), 0.25)
    assert np.allclose(skilled_policy(problem, 0.7).sum(axis=1), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid:sise=4", "Did you mean 'size'"),
        ("grid:size=2", r"size takes integer in \[3, 16\], not 2"),
        ("grid:size", "write a name, then :option=value"),
        ("grid:size=4:size=5", "given twice"),
        ("tree:depth=8:branching=6", "at most 20000"),
    ],
)
def test_a_problem_that_cannot_be_made_says_why(text: str, message: str) -> None:
    with pytest.raises(tw.TurnwiseError, match=message):
        make(text)


def test_tables_that_do_not_fit_together_are_refused() -> None:
    problem = make("corridor")
    lost = problem.probability.copy()
    lost[3, 1] = 0.5
    with pytest.raises(tw.TurnwiseError, match="action 1 in state 3 do not add up"):
        replace(problem, probability=lost).check()
    with pytest.raises(tw.TurnwiseError, match="horizon must be at least 1"):
        replace(problem, horizon=0).check()
    with pytest.raises(tw.TurnwiseError, match="outside 0"):
        replace(problem, next_state=problem.next_state + 99).check()
    with pytest.raises(tw.TurnwiseError, match="not terminal"):
        replace(problem, start=problem.terminal / 2).check()
