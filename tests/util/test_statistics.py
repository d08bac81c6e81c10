"""The statistics of comparisons against known values, brute force and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.util.statistics import (
    by_cluster,
    cohen_d,
    cohen_d_unpaired,
    cohen_h,
    effective_attempts,
    holm,
    incomplete_beta,
    mean_and_error,
    paired_interval,
    paired_t,
    shuffle,
    sign_flip,
    smallest_shuffle,
    smallest_sign_flip,
    t_interval,
    t_quantile,
    t_tail,
    task_interval,
    welch,
    wilson,
)

differences = st.lists(st.integers(-12, 12).map(lambda n: n / 12), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("freedom", "wanted"), [(1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (9, 2.2621572), (30, 2.0422725), (1000, 1.9623390)]
)
def test_students_quantile_is_that_of_the_printed_tables(freedom: int, wanted: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(wanted, abs=1e-7)
    assert t_tail(wanted, freedom) == pytest.approx(0.025, abs=1e-8)


def test_students_tail_has_its_closed_forms_for_one_and_two_degrees_of_freedom() -> None:
    for t in (0.0, 0.3, 1.0, 5.0, 80.0):
        assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)
        assert t_tail(t, 2) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), abs=1e-12)
    assert incomplete_beta(2, 3, 0.0) == 0 and incomplete_beta(2, 3, 1.0) == 1
    with pytest.raises(ValueError, match="share"):
        t_quantile(1.0, 3)


def test_intervals_and_errors_of_known_samples() -> None:
    values = [0.5, 0.6, 0.7, 0.8, 0.9]
    mean, error = mean_and_error(values)
    assert (mean, error) == (pytest.approx(0.7), pytest.approx(math.sqrt(0.025 / 5)))
    low, high = t_interval(values) or (0, 0)
    assert (low, high) == (pytest.approx(0.7 - 2.7764451 * error), pytest.approx(0.7 + 2.7764451 * error))
    assert t_interval([0.5]) is None
    assert t_interval([0.25, 0.25]) is None and t_interval([0.3 - 0.1, 0.2, 0.5 - 0.3]) is None  # no spread is no certainty
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == 1 and wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_students_paired_test_on_a_textbook_sample() -> None:
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]  # Student's own: extra hours of sleep under two drugs
    assert paired_t(sleep) == pytest.approx(0.00283289, abs=1e-7)
    assert paired_t([0.1]) is None and paired_t([0.1, 0.1]) is None and paired_t([0.0, 0.0]) == 1.0


def test_welchs_test_on_the_same_sample_without_pairs() -> None:
    one, two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4], [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    (low, high), p = welch(one, two) or ((0.0, 0.0), 0.0)
    assert p == pytest.approx(0.07939, abs=1e-5) and (low, high) == pytest.approx((-0.2054832, 3.3654832), abs=1e-6)
    assert welch([1], [1, 2]) is None and welch([1, 1], [2, 2]) is None


@given(differences)
def test_flipping_signs_equals_brute_force(values: list[float]) -> None:
    observed = abs(sum(values))
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert sign_flip(values) == pytest.approx(np.mean([one >= observed - 1e-9 for one in sums]))
    assert sign_flip(values) >= smallest_sign_flip(len(values)) - 1e-12
    assert sign_flip([-value for value in values]) == sign_flip(values)


@given(differences, differences)
def test_exchanging_labels_equals_brute_force(one: list[float], other: list[float]) -> None:
    one, other = one[:5], other[:4]
    pool = [*one, *other]
    gaps = []
    for chosen in itertools.combinations(range(len(pool)), len(one)):
        inside = [pool[i] for i in chosen]
        outside = [pool[i] for i in range(len(pool)) if i not in chosen]
        gaps.append(abs(np.mean(inside) - np.mean(outside)))
    observed = abs(np.mean(one) - np.mean(other))
    assert shuffle(one, other) == pytest.approx(np.mean([gap >= observed - 1e-9 for gap in gaps]))


def test_what_few_seeds_can_show_at_most() -> None:
    assert [smallest_sign_flip(n) for n in (1, 3, 5, 6)] == [1.0, 0.25, 0.0625, 0.03125]
    assert sign_flip([0.1, 0.2, 0.3]) == 0.25
    assert shuffle([1, 2, 3], [7, 8, 9]) == smallest_shuffle(3, 3) == 0.1


def test_drawn_flips_are_near_the_exact_share() -> None:
    """18 equal differences, 13 of one sign: the exact p is a binomial tail, and 18 are too many to count through."""
    exact = 2 * sum(math.comb(18, k) for k in range(13, 19)) / 2**18
    assert sign_flip([0.5] * 13 + [-0.5] * 5, draws=200_000) == pytest.approx(exact, abs=4 * math.sqrt(exact / 200_000))
    assert sign_flip([1.0] * 60, draws=1000) == pytest.approx(1 / 1001)  # never 0: the observed pattern counts


def test_the_interval_of_a_paired_difference_is_bonett_and_prices() -> None:
    """Their interval of paired proportions adds one task won by either side; ours has Student's quantile instead of the normal one."""
    better, worse, alike = 7, 2, 11
    n = better + worse + alike
    p, q = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = t_quantile(0.975, n - 1) * math.sqrt((p + q - (p - q) ** 2) / (n + 2)) * math.sqrt((n + 2) / (n + 1))
    differences = [1.0] * better + [-1.0] * worse + [0.0] * alike
    assert paired_interval(differences, [str(i) for i in range(n)]) == pytest.approx((p - q - half, p - q + half))
    assert paired_interval([0.0], ["a"]) is None
    low, high = paired_interval([0.0] * 4, list("abcd")) or (0.0, 0.0)
    assert low < -0.3 and high > 0.3  # four tasks that agree are no proof that all do


def test_differences_of_one_cluster_count_together() -> None:
    names = [name for name in "abcdefgh" for _ in range(3)]
    differences = np.repeat([1.0, 0.0, 1.0, -1.0, 1.0, 0.0, 1.0, 0.0], 3)
    assert by_cluster(differences, names).tolist() == [3.0, 0.0, 3.0, -3.0, 3.0, 0.0, 3.0, 0.0]
    alone, together = paired_interval(differences, [str(i) for i in range(24)]), paired_interval(differences, names)
    assert alone is not None and together is not None and together[0] < alone[0] < alone[1] < together[1]
    assert by_cluster([1.0, 2.0], ["a", "a"]).tolist() == [1.0, 2.0]  # one scenario alone: its tasks are all there is to count


def test_holm_on_a_worked_example_and_its_properties() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.2]) == [0.2] and holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_helps_and_keeps_the_order(ps: list[float]) -> None:
    corrected = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, corrected, strict=True))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert all(corrected[a] <= corrected[b] for a, b in itertools.pairwise(order))


def test_effect_sizes() -> None:
    assert cohen_d([0.1, 0.2, 0.3]) == pytest.approx(2.0) and cohen_d([0.1, 0.1]) is None and cohen_d([0.4]) is None
    assert cohen_d_unpaired([1, 2, 3], [2, 3, 4]) == pytest.approx(-1.0)
    assert cohen_h(1.0, 0.0) == pytest.approx(math.pi) and cohen_h(0.5, 0.5) == 0 and cohen_h(0.2, 0.6) == -cohen_h(0.6, 0.2)


def paired_panels(
    rng: np.random.Generator, trials: int, scenarios: int, variants: int, repeats: int, gap: float
) -> tuple[np.ndarray, float]:
    """Differences of two models' success rates, by trial, scenario and variant. Variants of a scenario are equally hard, and how much one
    model gains differs between scenarios. Returned with the true mean difference."""
    difficulty = rng.beta(2, 2, (trials, scenarios, 1))
    gains = (gap + 0.2 * rng.standard_normal((trials, scenarios, 1))) * 4 * difficulty * (1 - difficulty)
    better = np.clip(difficulty + gains, 0, 1)
    shape = (trials, scenarios, variants)
    shares = [rng.binomial(repeats, np.broadcast_to(rates, shape)) / repeats for rates in (better, difficulty)]
    return np.round(shares[0] - shares[1], 12), float((better - difficulty).mean())


@pytest.mark.parametrize(("scenarios", "variants", "repeats"), [(5, 1, 1), (5, 1, 8), (12, 1, 1), (150, 1, 4), (5, 10, 1), (10, 10, 4)])
@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_the_interval_of_a_difference_over_tasks_covers_the_truth(scenarios: int, variants: int, repeats: int, gap: float) -> None:
    trials = 400
    panels, truth = paired_panels(np.random.default_rng(1), trials, scenarios, variants, repeats, gap)
    names = [str(scenario) for scenario in range(scenarios) for _ in range(variants)]
    ends = [paired_interval(panel.ravel(), names, repeats) or (1.0, -1.0) for panel in panels]
    assert np.mean([low <= truth <= high for low, high in ends]) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / trials)


def test_variants_of_a_scenario_do_not_turn_chance_into_a_finding() -> None:
    """Ten scenarios of ten variants each: without a true difference, flipping the signs of single tasks is wrong far more often than one
    time in twenty, flipping those of scenarios is not."""
    trials, names = 400, [str(scenario) for scenario in range(10) for _ in range(10)]
    panels, _ = paired_panels(np.random.default_rng(2), trials, 10, 10, 4, 0.0)
    wrong = np.mean([sign_flip(by_cluster(panel.ravel(), names)) <= 0.05 for panel in panels])
    assert wrong < 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)
    assert np.mean([sign_flip(panel.ravel(), draws=2000) <= 0.05 for panel in panels]) > 0.2


# -- several attempts at each task -------------------------------------------------------------------------------------------------


def test_equal_attempts_at_a_task_tell_no_more_than_one_of_them() -> None:
    for won in (0, 1, 5, 9, 10):
        repeated = task_interval([10] * won + [0] * (10 - won), [10] * 10)
        assert repeated == pytest.approx(wilson(won, 10), abs=1e-12)
        assert task_interval([1] * won + [0] * (10 - won), [1] * 10) == pytest.approx(wilson(won, 10), abs=1e-12)


def test_where_all_succeed_or_none_only_the_tasks_count() -> None:
    assert task_interval([0] * 20, [8] * 20) == wilson(0, 20) and task_interval([8] * 20, [8] * 20) == wilson(20, 20)
    assert task_interval([3], [4]) == pytest.approx(wilson(0.75, 1)) and task_interval([], []) == (0.0, 1.0)


def test_attempts_at_tasks_that_do_not_differ_count_nearly_in_full() -> None:
    rng = np.random.default_rng(0)
    won = rng.binomial(10, 0.5, size=400)
    assert 3000 < effective_attempts(won, np.full(400, 10)) <= 4000
    low, high = task_interval(won, np.full(400, 10))
    assert high - low == pytest.approx(np.subtract(*wilson(float(won.sum()), 4000)[::-1]), rel=0.15)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_the_effective_attempts_lie_between_tasks_and_attempts(counts: list[tuple[int, int]]) -> None:
    won, attempts = [min(pair) for pair in counts], [max(pair) for pair in counts]
    tasks = sum(n > 0 for n in attempts)
    least = sum(attempts) ** 2 / max(1, sum(n * n for n in attempts))  # Kish: fewer than the tasks if attempts are spread unevenly
    assert min(least, tasks) - 1e-9 <= effective_attempts(won, attempts) <= max(sum(attempts), tasks) + 1e-9
    low, high = task_interval(won, attempts)
    if tasks:
        assert 0 <= low <= sum(won) / sum(attempts) + 1e-12 and sum(won) / sum(attempts) - 1e-12 <= high <= 1


@pytest.mark.parametrize(("a", "b", "tasks", "repeats"), [(0.05, 0.05, 10, 10), (1.0, 1.0, 10, 10), (0.5, 2.0, 30, 4)])
def test_the_interval_of_an_evaluation_covers_the_truth_with_repeats(a: float, b: float, tasks: int, repeats: int) -> None:
    rng, trials = np.random.default_rng(7), 300
    won = np.sort(rng.binomial(repeats, rng.beta(a, b, size=(trials, tasks))), axis=1)
    rows, counts = np.unique(won, axis=0, return_counts=True)  # equal results have equal intervals
    attempts, truth = np.full(tasks, repeats), a / (a + b)
    ends = np.array([task_interval(row, attempts) for row in rows])
    covered = float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])) @ counts) / trials
    assert covered > 0.95 - 4 * math.sqrt(0.05 * 0.95 / trials)
    pooled = np.array([wilson(float(row.sum()), tasks * repeats) for row in rows])
    assert float(((pooled[:, 0] <= truth) & (truth <= pooled[:, 1])) @ counts) / trials < 0.9  # what counting attempts would give


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (0.5, 0.5), (0.5, 4.0)])
def test_the_interval_of_an_evaluation_covers_the_truth_with_variants_of_few_scenarios(a: float, b: float) -> None:
    """Ten scenarios of very different sizes, one attempt at each variant."""
    rng, trials = np.random.default_rng(8), 400
    sizes = np.array([2, 2, 4, 6, 8, 10, 12, 16, 20, 20])
    won = rng.binomial(sizes, rng.beta(a, b, size=(trials, 10)))
    ends = np.array([task_interval(row, sizes) for row in won])
    covered = np.mean((ends[:, 0] <= a / (a + b)) & (a / (a + b) <= ends[:, 1]))
    assert covered > 0.95 - 4 * math.sqrt(0.05 * 0.95 / trials)
