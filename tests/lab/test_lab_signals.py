"""Signals of the lab: values of fresh attempts, gains in a critic's value, entropies."""

from __future__ import annotations

import numpy as np
import pytest

import turnwise as tw
from turnwise.lab.experiment import Settings, run
from turnwise.lab.lines import choose
from turnwise.lab.problems import make
from turnwise.lab.signals import FRESH, fresh_returns
from turnwise.lab.study import make_case, views_of


@pytest.mark.parametrize("name", ["grid", "chain", "bifurcation"])
def test_fresh_attempts_estimate_the_true_value_of_their_state_and_time(name: str) -> None:
    case = make_case(name, make(name), 0.3)
    state, t = int(np.argmax(case.problem.start)), 0
    many = 4000  # means of nine attempts each
    found, turns = fresh_returns(case.problem, case.policy, np.full(many, state), np.full(many, t), np.random.default_rng(0))
    error = found.std(ddof=1) / many**0.5
    assert abs(found.mean() - case.value[t, state]) < 4.5 * error and error < 0.1
    assert many * FRESH <= turns <= many * FRESH * (case.problem.horizon - t)


def test_at_the_end_of_time_nothing_is_left_to_gain() -> None:
    problem = make("grid")
    case = make_case("grid", problem, 0.3)
    found, turns = fresh_returns(problem, case.policy, np.array([0]), np.array([problem.horizon]), np.random.default_rng(0))
    assert found.tolist() == [0.0] and turns == 0


def test_gains_are_differences_of_the_critics_values() -> None:
    case = make_case("grid", make("grid"), 0.3)
    _, views = views_of(case, 4, 8, 1, 0)
    r = views[0].rollouts("exact", ("turn.information_gain", "turn.potential_gain", "token.entropy"))
    assert r.value is not None
    gain, potential = np.asarray(r.column("turn.information_gain")), np.asarray(r.column("turn.potential_gain"))
    for trajectory in range(len(r.trajectory_labels)):
        rows = np.flatnonzero(r.trajectory == trajectory)
        np.testing.assert_allclose(gain[rows], np.append(np.diff(r.value[rows]), np.nan))
        np.testing.assert_allclose(potential[rows], r.reward[rows] + np.append(r.value[rows][1:], 0.0) - r.value[rows])
    policy = case.policy[np.asarray(r.column("turn.state"))]
    np.testing.assert_allclose(r.column("token.entropy"), -(policy * np.log(policy)).sum(axis=1))


def test_methods_that_need_a_signal_of_the_lab_are_measured() -> None:
    labels = [line.label for line in choose(None)]
    assert {"vineppo", "igpo", "a2tgpo", "aepo"} <= set(labels) and "istar" not in labels
    result = run(Settings(problems=["bifurcation"], algos=["grpo", "vineppo"], group_sizes=(2, 8), seeds=4, budget=32, iterations=3))
    means = {label: result["credit"]["bifurcation"][label]["8"]["correlation"]["mean"] for label in ("grpo", "vineppo")}
    assert means["vineppo"] > means["grpo"]
    with pytest.raises(tw.TurnwiseError, match=r"istar cannot run in the lab: .*turn\.implicit_reward"):
        run(Settings(problems=["grid"], algos=["istar"], seeds=2))
