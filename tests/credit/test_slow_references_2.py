"""The slow references of information, trees and order, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from references import (
    a2tgpo,
    igpo,
    infopo,
    seeupo,
    serl,
    t_star,
)

LN = math.log
HALF = math.sqrt(0.5)


def test_information_gain_rewards():
    assert igpo.answer_probability([[LN(0.5), LN(0.125)], [LN(0.1)]]) == pytest.approx(0.25)
    assert igpo.turn_rewards([0.1, 0.4, 0.3], 1.0, 3) == pytest.approx([0.3, -0.1, 1.0])
    assert igpo.turn_rewards(None, 0.5, 2) == [0.0, 0.5]
    assert igpo.turn_rewards([0.1], 0.5, 2, alpha=2.0) == [0.0, 1.0]
    assert igpo.turn_rewards([0.1], 0.5, 1) == [0.5]


def test_information_gain_advantages():
    rewards, groups = [[0.0, 2.0], [1.0, 1.0]], ["a", "a"]
    z = 1 / (math.sqrt(2 / 3) + 1e-6)
    assert igpo.paper_advantages(rewards, groups)[0] == pytest.approx([0.0, z], abs=1e-12)
    assert igpo.paper_advantages(rewards, groups, gamma=0.5)[0] == pytest.approx([-z / 2, z])
    assert igpo.paper_advantages(rewards, groups)[1] == [0.0, 0.0]
    separate = igpo.paper_advantages(rewards, groups, how="separate")
    assert separate[0] == pytest.approx([0.0, HALF], abs=1e-5)
    assert separate[1] == pytest.approx([0.0, -HALF], abs=1e-5)
    assert igpo.paper_advantages([[0.3, 0.3]], ["a"]) == [[0.0, 0.0]]
    assert igpo.curriculum(0.5) == (0.75, 0.75)


def test_gains_at_the_same_depth():
    gains, groups = [[1.0, 5.0], [3.0]], [0, 0]
    assert a2tgpo.gain_scores(gains, groups) == [pytest.approx([-1.0, 0.0], abs=1e-5), pytest.approx([1.0], abs=1e-5)]
    assert a2tgpo.depth_sums([1.0, 3.0], 0.5) == pytest.approx([2.5 / math.sqrt(2), 3.0])
    a = a2tgpo.advantages(gains, [1.0, 0.0], groups, alpha=1.0)
    assert a[0] == pytest.approx([-HALF + HALF, HALF, HALF], abs=1e-5)
    assert a[1] == pytest.approx([1.0 - HALF, -HALF], abs=1e-5)
    scales = a2tgpo.clip_scales(gains, groups)
    assert scales[0][1:] == [1.0, 1.0]
    assert scales[1][0] == pytest.approx(1 + 0.3 * (2 / (1 + math.exp(-1)) - 1), abs=1e-5)
    loss, grad = a2tgpo.losses([[0.0, 0.01], [0.002]], [[0.0, 0.0], [0.0]], [1.0, 1.0], [1.0, 0.7])
    assert loss == [pytest.approx([-1.004, -1.004]), pytest.approx([-math.exp(0.002)])]
    assert grad == [[0.0, 0.0], pytest.approx([-math.exp(0.002)])]


def test_information_of_an_observation():
    assert infopo.information([-1.0, -2.0], [-2.0, -2.0]) == 0.5
    assert infopo.token_rewards([1.0], [2, 3]) == [[0.5, 0.5], [0.0, 0.0, 0.0]]
    a = infopo.advantages([[1.0], [3.0]], [[1, 1], [1, 1]], [1.0, 1.0], [0, 0])
    assert [x[0][0] for x in a] == pytest.approx([-0.25 * HALF, 0.25 * HALF], abs=1e-5)
    assert [x[1][0] for x in a] == [0.0, 0.0]
    a = infopo.advantages([[1.0], [3.0]], [[1, 1], [1, 1]], [1.0, 0.0], [0, 0])
    gate = 1 / (1 + math.exp(HALF / 0.05))
    assert [x[0][0] for x in a] == pytest.approx([HALF - 0.5 * gate * HALF, -HALF + 0.5 * gate * HALF], abs=1e-5)
    assert infopo.scale([0.0, 1.0], [0.0, 4.0]) == pytest.approx(1 / (4 * HALF))
    assert infopo.advantages([[]], [[2]], [1.0], [0]) == [[[0.0, 0.0]]]


def test_hindsight_weights():
    assert [serl.mixing(s) for s in (0, 25, 50, 99)] == [0.5, 0.25, 0.0, 0.0]
    assert serl.weight(1.0, -1.0, -1.1) == pytest.approx(math.exp(0.1))
    assert serl.weight(-1.0, -1.0, -1.1) == pytest.approx(math.exp(-0.1))
    assert serl.weight(1.0, 0.0, -9.0) == 1.2
    assert serl.advantages([2.0, 2.0, 0.0], [0.0] * 3, [-9.0] * 3, [True, False, True], 0.5) == pytest.approx([2.2, 2.0, 0.0])


def test_values_on_a_tree():
    nodes = t_star.merged([["a", "b", "c"], ["a", "b", "d"], ["a", "x"], ["y", "b"]])
    assert nodes == [[0, 1, 2], [0, 1, 3], [0, 4], [5, 6]]
    returns = [1.0, 0.0, 0.0, 1.0]
    q = t_star.values(nodes, returns)
    assert [q[n] for n in range(7)] == pytest.approx([1 / 3, 0.5, 1.0, 0.0, 0.0, 1.0, 1.0])
    assert t_star.values(nodes, returns, "children")[0] == 0.25
    s = math.sqrt(1 / 3) + 1e-6
    assert t_star.advantages(nodes, returns)[0] == pytest.approx([(1 / 3 - 0.5) / s, 0.0, 0.5 / s])
    assert t_star.advantages([[0], [1]], [2.0, 2.0]) == [[0.0], [0.0]]
    assert t_star.divergences(nodes, returns, 0.5) == [(0, 1, 4), (1, 2, 3)]
    assert t_star.preference_loss(0.0, 0.0, 1.0) == pytest.approx((LN(2), -0.5))


def test_reverse_updates_carry_the_clipped_ratio():
    a = seeupo.advantages([0.0, 1.0, 5.0], ["a", "a", "b"])
    assert a == pytest.approx([-1.0, 1.0, 0.0])
    assert seeupo.advantages([1.0, 1.0], [0, 0]) == [0.0, 0.0]
    assert max(seeupo.advantages([0.0] * 30 + [1.0], [0] * 31)) == 3.0
    assert seeupo.order(3) == [2, 1, 0]
    assert seeupo.accumulated(1.0, [LN(1.1)], [0.0]) == pytest.approx(1.1)
    assert seeupo.accumulated(1.1, [LN(9.0)], [0.0]) == pytest.approx(1.2)
    assert seeupo.factors([[0.0], [0.0, LN(1.21)], [LN(0.9)]], [[0.0], [0.0, 0.0], [0.0]]) == pytest.approx([0.99, 0.9, 1.0])


def test_only_rewards_other_than_zero_are_normalised():
    assert infopo.intrinsic([[[0.0, 1.0]], [[3.0]]], [0, 0]) == [[[0.0, pytest.approx(-HALF, abs=1e-5)]], [[pytest.approx(HALF, abs=1e-5)]]]
    assert infopo.gates([1.0, 1.0], [0, 0]) == [0.5, 0.5]
