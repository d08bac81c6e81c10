"""The slow references of information, trees and order, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from references import a2tgpo, forms, igpo, infopo, rebel, resrl, serl

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
    assert igpo.advantages(rewards, groups)[0] == pytest.approx([0.0, z], abs=1e-12)
    assert igpo.advantages(rewards, groups, gamma=0.5)[0] == pytest.approx([-z / 2, z])
    assert igpo.advantages(rewards, groups)[1] == [0.0, 0.0]
    separate = igpo.advantages(rewards, groups, how="separate")
    assert separate[0] == pytest.approx([0.0, HALF], abs=1e-5)
    assert separate[1] == pytest.approx([0.0, -HALF], abs=1e-5)
    assert igpo.advantages([[0.3, 0.3]], ["a"]) == [[0.0, 0.0]]


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


def test_residuals_outside_the_subspace_of_successes():
    pairs = resrl.eigenvectors([[2.0, 1.0], [1.0, 2.0]])
    assert [value for value, _ in pairs] == pytest.approx([3.0, 1.0])
    assert [abs(x) for x in pairs[0][1]] == pytest.approx([HALF, HALF])
    assert resrl.layer_normed([1.0, 3.0]) == pytest.approx([-1.0, 1.0], abs=1e-5)
    good = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [3.0, 0.1, 0.0], [0.0, 3.0, 0.2]]
    inside, outside = resrl.residuals(good, [[3.0, 0.0, 0.0], [0.0, 0.0, 3.0]], rank=1)
    assert outside > 10 * inside
    assert resrl.residuals(good, [[0.0, 0.0, 3.0]], rank=2)[0] == pytest.approx(0.0, abs=1e-9)  # layer norm leaves two dimensions
    assert resrl.weights([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx([0.1, 0.1, 0.4, 0.7, 1.0, 1.0])
    assert resrl.weights([1.0, 1.0]) == pytest.approx([0.55, 0.55])
    assert resrl.token_weights([good, [[1.0, 2.0, 0.0]]], [True, False]) == [[0.1] * 4, pytest.approx([0.55])]
    assert resrl.token_weights([good], [False]) == [[1.0] * 4]


def test_belief_groups():
    def trajectory(rewards, consistencies, beliefs):
        return forms.Trajectory(
            turns=[forms.Turn(r, extra={"consistency": c, "belief": b}) for r, c, b in zip(rewards, consistencies, beliefs, strict=True)]
        )

    both = [trajectory([0.0, 1.0], [0.5, 0.0], ["x", "y"]), trajectory([0.0], [0.1], ["x"])]
    a = rebel.advantages(both, 0.5, 0.5)
    assert a[0] == pytest.approx([0.5 + 0.5 * (0.25 + 0.2), 0.5])
    assert a[1] == pytest.approx([-0.5 + 0.5 * (-0.25 - 0.2)])
    assert rebel.consistency(1.0, 1.0, 0.5, 0.0) == pytest.approx(0.8)
    assert rebel.advantages(both[1:]) == [[0.0]]
    xs = [0.0, 1.0] * 5
    assert rebel.per_type(xs, ["a"] * 10)[1] == pytest.approx(0.5 / (forms.deviation(xs) + 1e-6))
    assert rebel.per_type(xs[:9], ["a"] * 9) == xs[:9]
