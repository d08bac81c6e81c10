"""The slow references of hierarchies and rewards, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from references import eapo, flow_grpo, himac, hiper, ipa, istar, mica, strata, vspo

LN = math.log
HALF = math.sqrt(0.5)


def test_segments_and_their_advantages():
    switches = [False, False, True]
    rewards, v_low, v_high, v_term = [1.0, 2.0, 4.0], [0.5, 0.25, 1.0], [3.0, 9.0, 2.0], [0.0, 1.0, 1.0]
    assert hiper.segments(switches) == [(0, 1), (2, 2)]
    low = hiper.low(rewards, switches, v_low, v_high, True, gamma=0.5, lam=0.5)
    second = 2.0 + 0.5 * 2.0 - 0.25
    assert low == pytest.approx([1.0 + 0.125 - 0.5 + 0.25 * second, second, 3.0])
    high = hiper.high(rewards, switches, v_high, True, gamma=0.5, lam=0.5)
    assert high == {2: pytest.approx(2.0), 0: pytest.approx(2.0 + 0.25 * 2.0 - 3.0 + 0.25 * 0.5 * 2.0)}
    assert hiper.term(rewards, switches, v_high, v_term, True, gamma=0.5) == pytest.approx([2.5, 2.0, 3.0])


def test_truncated_trajectories_bootstrap_from_themselves():
    assert hiper.low([1.0], [False], [0.5], [3.0], False, bootstrap=True) == [1.0]
    assert hiper.low([1.0], [False], [0.5], [3.0], False) == [0.5]
    assert hiper.high([1.0], [False], [3.0], False, bootstrap=True) == {0: 1.0}
    assert hiper.term([1.0], [False], [3.0], [0.5], False, bootstrap=True) == [3.5]
    assert hiper.normalised([0.0, 2.0]) == pytest.approx([-1.0, 1.0])
    assert hiper.normalised([2.0, 2.0]) == [0.0, 0.0]


def test_penalties_of_keeping_a_subgoal():
    args = ([0.0] * 4, [True, False, False, True], ["a", "a", "b", "c"], [True, True, True, False])
    assert hiper.shaped(*args) == pytest.approx([0.0, -0.3, -0.6, -0.1])
    assert hiper.shaped(*args, mode="normalized") == pytest.approx([0.0, -0.075, -0.375, -0.1])


def test_blueprints_and_strategies():
    assert himac.macro([0.0, 1.0]) == pytest.approx([-HALF, HALF], abs=1e-5)
    assert himac.best([0.0, 1.0, 1.0]) == 1
    assert himac.micro([1.0]) == [0.0]
    assert strata.farthest([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]], 3) == [0, 3, 2]
    assert strata.farthest([[1.0]], 4) == [0]
    assert strata.strategy_return([0.0, 1.0, 0.5, 0.2]) == 0.75
    assert strata.strategy_return([0.0, 1.0, 0.5]) == 0.75
    assert strata.strategy_advantages([[0.0, 1.0], [0.0, 0.0]]) == pytest.approx([HALF, -HALF], abs=1e-5)
    a = strata.action_advantages([1.0, 0.0], [[False], [False]], ["z", "z"])
    assert a == [pytest.approx([HALF], abs=1e-5), pytest.approx([-HALF], abs=1e-5)]
    a = strata.action_advantages([1.0, 1.0], [[False, True], [False, True]], ["z", "z"])
    s = math.sqrt(0.01 / 3) + 1e-6
    assert a[0] == pytest.approx([0.05 / s, -0.05 / s])
    a = strata.action_advantages([1.0, 0.0], [[True], [False]], ["z", "z"], pool="trajectories")
    assert a[0] == pytest.approx([0.4 / HALF], abs=1e-5)


def test_chunks():
    assert ipa.chunk_returns([0.0, 0.0, 2.0], 0.5) == [0.5, 1.0, 2.0]
    assert ipa.chunk_ratio([LN(4.0), 0.0], [0.0, 0.0]) == pytest.approx(2.0)
    assert ipa.kept([0.0], [LN(0.9)], 1.2)
    assert not ipa.kept([0.0], [LN(0.5)], 1.2)
    loss, grad = ipa.losses(
        [[-1.0], [-1.0], [-1.0]], [[-1.0 - LN(0.5)], [-1.0 - LN(0.5)], [0.0]], [2.0, -2.0, 1.0], [True, False, True], [True, True, False]
    )
    assert loss == [[2.0], [pytest.approx(-1.0)], [0.0]]
    assert grad == [[-2.0], [pytest.approx(1.0)], [0.0]]
    assert ipa.imitation([LN(0.5)], 2.0) == ([pytest.approx(-1.0)], [pytest.approx(-1.0)])


def test_implicit_process_rewards():
    assert istar.step_reward([-1.0, -1.0], [-2.0, -3.0]) == pytest.approx(0.15)
    assert istar.pairs([True, False, True, True], ["a", "a", "a", "b"]) == [(0, 1), (2, 1)]
    assert istar.pairs([True, False, True, True], ["a", "a", "a", "b"], "once") == [(0, 1)]
    assert istar.pairs([True, False, True, False], ["a"] * 4, "all") == [(0, 1), (0, 3), (2, 1), (2, 3)]
    assert istar.prm_loss([[0.5], [0.5]], [(0, 1)]) == pytest.approx(LN(2))
    assert istar.prm_loss([[1.0, 0.0], [0.5]], [(0, 1)], reduce="mean") == pytest.approx(LN(2))
    assert istar.prm_gradient([[1.0, 0.0], [0.5]], [(0, 1)], reduce="mean") == pytest.approx([-0.0125, 0.025])
    assert istar.prm_loss([[1.0]], []) == 0.0
    assert istar.prm_gradient([[0.5], [0.5]], [(0, 1)]) == pytest.approx([-0.025, 0.025])
    step = 1e-6
    bumped = (istar.prm_loss([[0.5, 0.3 + 0.05 * step], [0.1]], [(0, 1)]) - istar.prm_loss([[0.5, 0.3], [0.1]], [(0, 1)])) / step
    assert istar.prm_gradient([[0.5, 0.3], [0.1]], [(0, 1)])[0] == pytest.approx(bumped, rel=1e-3)
    a = istar.advantages([1.0, 0.0], [[0.3, 0.0], [0.0]], [0, 0])
    assert a[0] == pytest.approx([1.0 + 0.3, 1.0 - 0.15])
    assert a[1] == pytest.approx([-1.0 - 0.15])
    assert istar.relative([0.0, 2.0], [0, 0], "mean") == [-1.0, 1.0]
    assert istar.relative([0.0, 2.0], [0, 0], "std") == pytest.approx([-HALF, HALF], abs=1e-5)
    assert istar.advantages([1.0], [[0.3]], [0]) == [[0.0]]


def test_rewards_per_round():
    assert eapo.round_rewards(2.0, 3, 0.5) == [0.5, 1.0, 2.0]
    a = eapo.advantages([1.0, 0.0], [2, 1], [0, 0], 0.5)
    s = 0.5 + 1e-6
    assert a[0] == pytest.approx([0.0, 0.5 / s])
    assert a[1] == pytest.approx([-0.5 / s])
    assert eapo.advantages([0.0, 0.0], [2, 1], [0, 0]) == [[0.0, 0.0], [0.0]]
    assert eapo.kept_rows(10, 4) == 8


def test_values_of_tasks():
    assert vspo.value([0.0, 1.0]) == pytest.approx(0.5 * HALF)
    assert vspo.value([1.0, 1.0]) == 0.0
    assert vspo.dead([0.2, 0.2])
    assert vspo.shares([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]]) == pytest.approx([0.5, 0.0, 0.5])
    assert vspo.shares([[1.0, 1.0]]) == [0.0]
    assert [vspo.staged(p, f, 0.5, (0.1, 0.2, 0.7)) for p, f in ((False, True), (True, False), (True, True))] == pytest.approx(
        [0.0, 0.1, 0.65]
    )


def test_potentials():
    assert mica.increments([0.0, 1.0, 0.5]) == [1.0, -0.5]
    a = mica.advantages([[0.0, 1.0], [0.0, 0.0]], [0, 0], mix=0.5)
    assert a == [pytest.approx([1.5 * HALF], abs=1e-5), pytest.approx([-1.5 * HALF], abs=1e-5)]
    assert mica.advantages([[0.0, 1.0, 2.0]], [0], gamma=0.0) == [[0.0, 0.0]]
    assert mica.advantages([[0.0, 1.0, 0.5]], [0], peers="turn") == [[0.0, 0.0]]


def test_outcome_for_every_planner_turn():
    a = flow_grpo.advantages([1.0, 0.0], [3, 1], [0, 0])
    assert a[0] == pytest.approx([0.25 / (0.5 + 1e-6)] * 3)
    assert a[1] == pytest.approx([-0.75 / (0.5 + 1e-6)])
    assert flow_grpo.advantages([1.0, 0.0], [3, 1], [0, 0], over="trajectories")[0] == pytest.approx([HALF] * 3, abs=1e-5)
