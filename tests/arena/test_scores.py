"""Statistics over environments and seeds: against slow definitions, and against simulations whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.arena import scores


def drawn(seed: int, environments: int = 4, seeds: int = 8, mean: float = 0.6, spread: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centre = mean + 0.2 * np.linspace(-1, 1, environments)[:, None]
    return np.clip(rng.normal(centre, spread, (environments, seeds)), 0, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_interquartile_mean_is_the_mean_of_the_middle_half(values):
    repeated = np.sort(np.repeat(values, 4))  # four copies of each: the quarters end between values
    n = len(values)
    assert scores.interquartile_mean(np.array(values)) == pytest.approx(repeated[n : 3 * n].mean(), abs=1e-12)


def test_an_outlier_moves_the_mean_and_not_the_interquartile_mean():
    values = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0])
    assert scores.interquartile_mean(values) == 0.5
    assert values.mean() < 0.5


@pytest.mark.parametrize("of", ["mean", "iqm"])
def test_intervals_over_eight_seeds_hold_the_truth_as_often_as_they_say(of):
    """The truth of the interquartile mean is that of very many seeds."""
    interval, statistic = {
        "mean": (scores.mean_interval, scores.overall_mean),
        "iqm": (scores.iqm_interval, scores.overall_iqm),
    }[of]
    truth = statistic(drawn(0, seeds=20_000))
    held = 0
    for seed in range(400):
        low, high = interval(drawn(1 + seed), seed)
        held += low <= truth <= high
    assert 0.90 <= held / 400 <= 0.99


def test_the_interval_of_a_difference_holds_the_truth_and_its_p_is_uniform_without_one():
    held, small = 0, 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        shared = rng.normal(0.5, 0.2, (3, 5))  # what a seed gives to both
        one = shared + rng.normal(0.0, np.array([[0.02], [0.1], [0.05]]), (3, 5))
        other = shared + rng.normal(0.0, 0.05, (3, 5))
        found = scores.difference(one, other)
        held += found.interval[0] <= 0 <= found.interval[1]
        small += found.p < 0.05
    assert 0.92 <= held / 600 <= 0.98
    assert 0.02 <= small / 600 <= 0.08


def test_a_difference_as_large_as_the_detectable_one_is_seen_four_times_out_of_five():
    seen = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.05, (4, 8))
        seen.append(scores.difference(0.5 + 0.0255 + noise, np.full((4, 8), 0.5)).p < 0.05)
    detectable = np.mean(
        [scores.difference(np.random.default_rng(s).normal(0, 0.05, (4, 8)), np.zeros((4, 8))).detectable for s in range(400)]
    )
    assert detectable == pytest.approx(0.0255, rel=0.05)
    assert 0.74 <= np.mean(seen) <= 0.88


def test_equal_scores_have_no_interval_and_no_doubt():
    same = np.full((2, 4), 0.5)
    found = scores.difference(same, same)
    assert (found.difference, found.interval, found.p) == (0.0, None, 1.0)
    assert scores.difference(same[:, :1], same[:, :1]).p is None


def test_the_probability_of_improvement_counts_pairs_of_runs():
    one, other = drawn(1), drawn(2, mean=0.55)
    pairs = [(a > b) + 0.5 * (a == b) for environment in range(len(one)) for a in one[environment] for b in other[environment]]
    assert scores.improvement(one, other) == pytest.approx(np.mean(pairs))
    assert scores.improvement(one, other) + scores.improvement(other, one) == pytest.approx(1)
    low, high = scores.improvement_interval(one, other)
    assert low <= scores.improvement(one, other) <= high


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=8))
def test_ranks_are_those_of_a_sorted_list_and_ties_share_theirs(means):
    found = scores.ranks(np.array(means))
    ordered = sorted(means, reverse=True)
    expected = [np.mean([place + 1 for place, value in enumerate(ordered) if value == mean]) for mean in means]
    assert found == pytest.approx(expected)


def test_intervals_of_ranks_part_what_differs_and_not_what_is_equal():
    methods = {"best": drawn(1, mean=0.75, spread=0.03), "one": drawn(2, spread=0.05), "two": drawn(3, spread=0.05)}
    found = scores.rank_intervals(methods)
    assert found["best"] == (1.0, 1.0, 1.0)
    assert found["one"][1:] == (2.0, 3.0) and found["two"][1:] == (2.0, 3.0)


@pytest.mark.parametrize(("ceiling", "half"), [(0.9, 500.0), (0.7, 2000.0), (0.95, 100.0)])
def test_a_fitted_curve_tells_how_good_from_how_fast(ceiling, half):
    x = np.linspace(0, 4000, 12)
    y = 0.2 + (ceiling - 0.2) / (1 + (half / np.maximum(x, 1e-9)) ** 1.5)
    found = scores.fit_sigmoid(x, y)
    assert found.ceiling == pytest.approx(ceiling, abs=0.02)
    assert found.half == pytest.approx(half, rel=0.1)
    assert found.error < 0.005


def test_a_curve_that_does_not_rise_has_no_fit():
    assert scores.fit_sigmoid([0, 1, 2, 3, 4, 5], [0.5, 0.5, 0.4, 0.4, 0.3, 0.3]) is None
    assert scores.fit_sigmoid([0, 1, 2], [0.1, 0.2, 0.3]) is None


def test_halves_of_the_seeds_agree_where_methods_differ_and_not_where_they_do_not():
    apart = {str(i): drawn(i, mean=0.3 + 0.1 * i, spread=0.02) for i in range(5)}
    alike = {str(i): drawn(i, spread=0.1) for i in range(5)}
    assert scores.split_half(apart) > 0.95
    assert abs(scores.split_half(alike)) < 0.9
    assert scores.split_half({"one": drawn(1), "two": drawn(2)}) is None


def test_a_profile_falls_from_all_runs_to_none():
    found = scores.profile(drawn(1), [-0.1, 0.5, 1.0])
    assert found[0] == 1.0 and found[-1] == 0.0 and found[0] >= found[1] >= found[2]
    assert math.isclose(found[1], float((drawn(1) > 0.5).mean()))
