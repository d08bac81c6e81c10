"""The slow references themselves, on numbers worked out by hand: a slip in one of them is found here."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from references import (
    aepo,
    arpo,
    clip_cov,
    epo,
    forms,
    gae,
    graph_gpo,
    hgpo,
    holder,
    icepop,
    kl_cov,
    t2po,
    verl,
)

LN = math.log
FOLDER = Path(__file__).parents[1] / "references"


def test_the_references_use_nothing_but_plain_python_and_numpy():
    allowed = {"__future__", "math", "statistics", "collections", "dataclasses", "typing", "itertools", "numpy"}
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in allowed, file.name


def test_statistics_are_exactly_zero_where_values_are_equal():
    assert forms.scores([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert forms.scores([7.0]) == [0.0]
    assert forms.deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert forms.deviation([1.0, 3.0], ddof=0) == 1.0
    assert forms.quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert forms.quantile([1.0, 2.0], 0.2) == pytest.approx(1.2)
    assert forms.discounted([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("advantage", "rho", "loss", "slope"),
    [
        (1.0, 1.1, -1.1, -1.1),
        (1.0, 1.5, -1.2, 0.0),
        (-1.0, 0.5, 0.8, 0.0),
        (-1.0, 1.5, 1.5, 1.5),
        (-1.0, 5.0, 3.0, 0.0),
        (0.0, 9.0, 0.0, 0.0),
    ],
)
def test_clip_of_one_token(advantage, rho, loss, slope):
    assert forms.clipped(advantage, rho, 0.8, 1.2, dual=3.0) == pytest.approx((loss, slope))


LOGPROBS = [[-1.0, -3.0], [-1.0, -3.0]]
ADVANTAGES = [[2.0, 2.0], [-2.0, -2.0]]


def test_covariances_choose_the_tokens_that_agree_with_the_advantage():
    assert clip_cov.covariances(LOGPROBS, ADVANTAGES) == [[2.0, -2.0], [-2.0, 2.0]]
    assert clip_cov.candidates(LOGPROBS, LOGPROBS, ADVANTAGES) == [(0, 0), (1, 1)]
    assert clip_cov.number(100) == 1
    assert clip_cov.number(10_000) == 2
    loss, grad = clip_cov.losses(LOGPROBS, LOGPROBS, ADVANTAGES, {(0, 0)})
    assert loss == grad == [[0.0, -2.0], [2.0, 2.0]]
    assert kl_cov.chosen(LOGPROBS, ADVANTAGES, 0.5) == {(0, 0), (1, 1)}
    loss, grad = kl_cov.losses([[LN(0.5)]], [[0.0]], [[1.0]], {(0, 0)}, coefficient=2.0)
    assert loss == [[pytest.approx(-0.5 + 2 * LN(2))]]
    assert grad == [[pytest.approx(-0.5 - 2.0)]]


def test_power_mean_of_ratios():
    xs = [LN(1.0), LN(4.0)]
    for p, value in [(1.0, 2.5), (0.0, 2.0), (2.0, math.sqrt(8.5)), (-1.0, 1.6)]:
        assert holder.power_mean(xs, p) == pytest.approx(value)
        assert math.fsum(holder.shares(xs, p)) == pytest.approx(1.0)
    assert holder.power_mean(xs, 1e-5) == pytest.approx(2.0, abs=1e-4)
    loss, grad = holder.sequence_losses([xs, xs], [[0.0, 0.0]] * 2, [1.0, -1.0], 1.0)
    assert loss == pytest.approx([-1.2, 2.5])
    assert grad == [[0.0, 0.0], pytest.approx([0.5, 2.0])]
    loss, grad = holder.token_losses([xs], [[0.0, 0.0]], [1.0], 1.0)
    assert loss == pytest.approx([-1.1])
    assert grad == [pytest.approx([-0.5, 0.0])]


@pytest.mark.parametrize(
    ("form", "start", "quarter", "end"),
    [
        ("constant", 1.0, 1.0, 1.0),
        ("linear", -2.0, -1.0, 2.0),
        ("linear_dec", 2.0, 1.0, -2.0),
        ("cos", 2.0, math.sqrt(2), -2.0),
        ("sin", -2.0, -math.sqrt(2), 2.0),
        ("poly", -2.0, -1.75, 2.0),
        ("poly_dec", 2.0, 1.75, -2.0),
        ("cubic_dec", 2.0, 0.25, -2.0),
    ],
)
def test_schedules_of_the_power(form, start, quarter, end):
    assert [holder.scheduled(step, form) for step in (0, 250, 5000)] == pytest.approx([start, quarter, end])


def test_weights_and_masks_for_a_sampler_that_differs():
    old, roll = [[LN(0.8), LN(0.1)]], [[LN(0.4), LN(0.4)]]
    assert icepop.token_truncated(old, roll, 1.5) == [pytest.approx([1.5, 0.25])]
    assert icepop.token_masked(old, roll) == [pytest.approx([2.0, 0.0])]
    assert icepop.sequence_ratios(old, roll) == pytest.approx([0.5])
    assert icepop.sequence_ratios(old, roll, geometric=True) == pytest.approx([math.sqrt(0.5)])
    assert icepop.sequence_masked(old, roll, 0.6, 2.0) == [0.0]
    assert icepop.geometric_kept(old, roll) == [False]
    assert icepop.geometric_kept(old, old) == [True]
    assert icepop.k3_kept(old, roll, 0.5) == [(2 - LN(2) - 1 + 0.25 + LN(4) - 1) / 2 <= 0.5]
    assert icepop.segment_ratios(old, roll, [[0, 1]]) == [pytest.approx([2.0, 0.25])]
    assert icepop.segment_differences(old, roll, [[0, 0]]) == [pytest.approx([0.05, 0.05])]
    assert icepop.segment_kept(old, roll, [[0, 0]], (0.5, 1.05)) == [[True, True]]
    assert icepop.segment_kept(old, roll, [[0, 0]], (0.8, 1.05)) == [[False, False]]
    assert icepop.normalised([[1.0, 3.0]]) == [[0.5, 1.5]]


def test_advantages_over_turns_and_tokens():
    assert gae.chain([0.0, 1.0], [0.5, 0.25], 0.5, 0.5) == pytest.approx([-0.375 + 0.25 * 0.75, 0.75])
    assert gae.turns([0.0, 1.0, 9.0], [0.5, 0.25, 9.0], "aab", 0.5, 0.5) == pytest.approx([-0.1875, 0.75, 0.0])
    assert gae.tokens([0.0, 1.0], [[0.5], [0.25, 0.75]], "aa", 1.0, 1.0) == [[0.5], [0.75, 0.25]]
    assert gae.tokens([0.0, 1.0], [[0.5], [0.25, 0.75]], "ab", 1.0, 1.0) == [[-0.5], [0.75, 0.25]]
    assert gae.two_levels([0.0, 1.0], [[0.5], [0.25, 0.75]], "aa", 0.5, 1.0, 1.0, 1.0) == [[0.0], [0.75, 0.25]]


def test_estimators_of_whole_rows():
    score, group = [0.0, 3.0, 3.0, 5.0], "aaab"
    assert verl.rloo(score, group) == [-3.0, 1.5, 1.5, 5.0]
    assert verl.over_rows(score, group, std=False) == [-2.0, 1.0, 1.0, 5.0]
    assert verl.over_rows(score, group, alone=0.0) == pytest.approx([-2 / math.sqrt(3), 1 / math.sqrt(3), 1 / math.sqrt(3), 0.0], abs=1e-5)
    assert verl.whitened_over_tokens([0.0, 3.0], [2, 1]) == pytest.approx([-1 / math.sqrt(3), 2 / math.sqrt(3)])


def test_states_with_their_past_and_states_as_a_graph():
    anchor, group, trajectory = "xyxy", [0, 0, 0, 0], [0, 0, 1, 1]  # level 1: x, x and y, y; level 2: xy, xy
    assert hgpo.advantages([1.0, 2.0, 3.0, 2.0], anchor, group, trajectory, 1) == pytest.approx([-1.0, 0.0, 1.0, 0.0], abs=2e-6)
    assert hgpo.advantages([0.0, 4.0, 0.0, 2.0], anchor, group, trajectory, 1, std=False) == pytest.approx([0.0, 1.0, 0.0, -1.0], abs=1e-6)
    assert hgpo.advantages([1.0, 2.0, 3.0, 2.0], anchor, group, trajectory, 1, False, episode=[4.0] * 4, paper=True) == [1.5, 1.0, 2.5, 1.0]
    assert graph_gpo.distances([("x", "y"), ("y", "success"), ("x", "z"), ("z", "z")]) == {"x": 2, "y": 1, "success": 0, "z": 3}
    assert graph_gpo.distances([("x", "y")]) == {"x": 1, "y": 1}
    assert graph_gpo.step_returns("xyx", ["y", "success", "z"], [0, 0, 0], 0.5) == [5.0, 10.0, 1.25]
    assert graph_gpo.step_returns("xyx", ["y", "success", "z"], [0, 0, 0], 0.5, relative=True) == [10.0, 10.0, 2.5]
    assert graph_gpo.advantages([5.0, 9.0, 1.0], [1.0, 2.0, 3.0], "xyx", [0, 0, 0], False, 0.5) == [2.0, 2.0, 2.0]


def _family(returns, parents, starts, lengths):
    turns = [[forms.Turn() for _ in range(n)] for n in lengths]
    return [forms.Trajectory(turns=t, parent=p, branch_t=s) for t, p, s in zip(turns, parents, starts, strict=True)], returns


def test_branching_after_a_surprise():
    half = [LN(0.5), LN(0.5)]
    assert arpo.segment_entropy([half, half], 4) == pytest.approx(1.0)
    assert arpo.segment_entropy([half, half], 4, average=True) == pytest.approx(0.5)
    assert arpo.segment_entropy([half] * 30, 2) == pytest.approx(20.0)
    assert arpo.branches(0.55, 0.5)
    assert not arpo.branches(0.55, 0.0)


def test_shared_turns_have_the_mean_advantage():
    family, returns = _family([0.0, 2.0, 2.0, 0.0], [None, 0, 1, None], [0, 1, 2, 0], [2, 3, 3, 1])
    a = 1 / (math.sqrt(4 / 3) + 1e-6)
    assert arpo.soft(family, returns)[0] == pytest.approx([-a, -a])
    for row, expected in zip(arpo.hard(family, returns), [[a / 3, -a], [a / 3, a, a], [a / 3, a, a], [-a]], strict=True):
        assert row == pytest.approx(expected)


def test_balanced_branching_and_gradient_above_the_clip():
    assert aepo.roots(16, 1.0, 1.0) == 9
    assert aepo.roots(16, 100.0, 0.0) == 16
    assert aepo.branches(0.5, 0.0, 0)
    assert not aepo.branches(0.5, 0.0, 1)
    assert not aepo.branches(1.0, 9.0, 20)
    assert aepo.weighted([[1.0, 1.0]], [[0.0, 2.0]]) == [pytest.approx([1 - 0.2 / math.sqrt(2), 1 + 0.2 / math.sqrt(2)])]
    assert aepo.weighted([[3.0]], [[0.7]]) == [[3.0]]
    xs = [LN(1.5), LN(1.1), LN(0.5), LN(0.5), LN(5.0)]
    loss, grad = aepo.losses([xs], [[0.0] * 5], [[1.0, 1.0, 1.0, -1.0, -1.0]], 0.2, 0.2)
    assert loss == [pytest.approx([-1.2, -1.1, -0.5, 0.8, 3.0])]
    assert grad == [pytest.approx([-1.2, -1.1, -0.5, 0.0, 0.0])]


def test_entropy_band():
    assert epo.turn_means([[[1.0, 2.0], [4.0]], [[3.0]]]) == [2.0, 4.0]
    assert epo.history([[2.0, 4.0], [4.0]], 3) == [0.0, 1.0, 4.0]
    assert epo.history_by_turn([[2.0, 4.0], [4.0]], 3) == [3.0, 4.0, 0.0]
    assert epo.penalty([[0.0, 1.0, 2.0]], [1], [9.0, 1.0]) == [[0.1, 0.0, 0.1]]
    assert epo.hinges([[0.0, 1.0, 3.0]], [0], [1.0], low=0.5) == ([pytest.approx([0.05, 0.0, 0.1])], [pytest.approx([-0.1, 0.0, 0.1])])
    assert epo.epoch_weight(0) == 1.0
    assert epo.epoch_weight(75) == pytest.approx(0.8 + 0.2 * math.exp(-2))
    assert epo.epoch_weight(150) == pytest.approx(0.8 * math.exp(-3))
    mask, past = [[1, 1]], [9.0] * 5 + [0.1] + [9.0] * 4
    assert epo.entropy_term([[1.0, 3.0]], mask, [3], past, 0, 10, 0.01) == pytest.approx(-0.01 * 2.0)  # before half of the turns
    assert epo.entropy_term([[1.0, 3.0]], mask, [5], past, 0, 10, 0.01) == pytest.approx(-0.01 * 1.9)


def test_thoughts_stop_and_turns_are_drawn_again():
    assert t2po.confidence([LN(0.5), LN(0.25)]) == pytest.approx(1.5 * LN(2))
    assert t2po.uncertainties([0.0, 2.0], [1.0, 3.0]) == [0.5, 0.5]
    assert t2po.uncertainties([0.0, 2.0], [3.0, 1.0], 0.75) == [0.0, 1.0]
    assert t2po.uncertainties([0.0, 2.0, 4.0], [1.0, 1.0, 1.0], 1.0, running=True) == [0.0, 1.0, 1.0]
    m = [0.0, 1.0, 0.5, 0.5, 0.5]
    assert t2po.stop_at(m, 0, 2, 0.3) == 4
    assert t2po.stop_at(m, 5, 2, 0.3) == 5
    assert t2po.stop_at(m, 0, 2, 0.0) is None
    assert t2po.turn_uncertainty([0.25, 1.0]) == pytest.approx(0.5)
    assert t2po.draws_again(0.5, 0.4, 1)
    assert not t2po.draws_again(0.5, 0.4, 2)
    assert not t2po.draws_again(0.5, 0.5, 0)
    assert not t2po.draws_again(0.5, None, 0)


def _bump(function, logprobs, step=1e-6):
    """Derivative of the summed loss with respect to each log-prob, by differences."""
    slopes = []
    for i in range(len(logprobs)):
        slopes.append([])
        for t in range(len(logprobs[i])):
            sums = []
            for sign in (1, -1):
                moved = [list(row) for row in logprobs]
                moved[i][t] += sign * step
                values = function(moved)[0]
                sums.append(math.fsum(x for row in values for x in (row if isinstance(row, list) else [row])))
            slopes[-1].append((sums[0] - sums[1]) / (2 * step))
    return slopes


NOW = [[-0.3, -1.2, -2.0], [-0.9, -0.1]]
OLD = [[-0.5, -1.0, -2.9], [-0.3, -0.2]]
A = [[0.7, 0.7, 0.7], [-1.1, -1.1]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: clip_cov.losses(x, OLD, A, {(0, 1)}, 0.2, 0.2),
        lambda x: kl_cov.losses(x, OLD, A, {(0, 0), (1, 0)}, 0.5),
        lambda x: holder.sequence_losses(x, OLD, [0.7, -1.1], 2.0, 0.9, 0.9),
        lambda x: holder.sequence_losses(x, OLD, [0.7, -1.1], 0.0, 0.05, 0.9),
        lambda x: holder.token_losses(x, OLD, [0.7, -1.1], -1.5),
    ],
    ids=["clip_cov", "kl_cov", "holder", "holder_geometric", "holder_token"],
)
def test_gradients_agree_with_differences(function):
    for row, expected in zip(function(NOW)[1], _bump(function, NOW), strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_small_helpers():
    assert forms.by_group([1.0, 5.0, 3.0], ["a", "b", "a"], divide=False) == [-1.0, 0.0, 1.0]
    assert forms.whitened([0.0, 2.0]) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert forms.token_mean([[1.0], [2.0, 6.0], []]) == 3.0
    assert forms.row_mean([[1.0], [2.0, 6.0], []]) == 2.5
    assert forms.ratio(99.0, 0.0) == math.exp(20)
    assert forms.sigmoid(-800.0) == 0.0
    assert icepop.token_ratios([[LN(0.5)]], [[LN(0.25)]]) == [[pytest.approx(2.0)]]
    assert icepop.sequence_truncated([[LN(0.5), LN(0.5)]], [[LN(0.25), LN(0.25)]]) == [2.0]
    assert icepop.k2_kept([[0.0, 0.2]], [[0.0, 0.0]], 0.0101) == [True]
    assert icepop.k2_kept([[0.0, 0.2]], [[0.0, 0.0]], 0.0101, "max") == [False]
    assert aepo.attention([1.0, 3.0]) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert epo.entropy_gradient([[1, 1], [1, 1]], 0.1).tolist() == [[-0.025, -0.025]] * 2
