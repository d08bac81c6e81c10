"""Comparisons within tasks: exact p against scipy and against every permutation, intervals that cover, and few false findings."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from turnwise.logs import contrasts
from turnwise.logs.contrasts import Rows, compare, exact_tail, within_reach


def rows(context, choice, attempt, **options):
    columns = [np.asarray(column, np.int64) for column in (context, choice, attempt, attempt)]
    return Rows(*columns, **options)


def one_context(choice, **options):
    return rows(np.zeros(len(choice)), choice, np.arange(len(choice)), **options)


def test_a_tail_is_that_of_a_sum_of_hypergeometric_numbers():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = rng.integers(2, 12, 6)
        y, n1 = (np.array([rng.integers(0, k + 1) for k in n]) for _ in range(2))
        distribution, least = np.ones(1), 0
        for attempts, won, chosen in zip(n, y, n1, strict=True):
            support = np.arange(max(0, won + chosen - attempts), min(won, chosen) + 1)
            least += support[0]
            distribution = np.convolve(distribution, stats.hypergeom.pmf(support, attempts, won, chosen))
        step = int(rng.integers(0, len(distribution)))
        assert exact_tail(n, y, n1, int(least + step), lower=True) == pytest.approx(distribution[: step + 1].sum())
        assert exact_tail(n, y, n1, int(least + step), lower=False) == pytest.approx(distribution[step:].sum())


def test_one_task_gives_fishers_exact_test():
    choice = np.array([1] * 9 + [0] * 14)
    won = np.array([True] * 2 + [False] * 7 + [True] * 11 + [False] * 3)
    family = compare([one_context(choice, partition=False, one_sided=True)], np.zeros(23, np.int64), won, 0.05)
    expected = stats.fisher_exact([[2, 7], [11, 3]], alternative="less").pvalue
    assert family.p[family.choice == 1] == pytest.approx(expected)
    assert family.p[family.choice == 0] == 1.0, "choice 0 goes with success"


def test_p_over_tasks_is_the_share_of_permutations_within_tasks_that_are_as_extreme():
    task = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])
    choice = np.array([1, 1, 0, 0, 1, 1, 0, 0, 0])
    won = np.array([True, True, False, False, True, True, True, False, False])
    reached = (won & (choice == 1)).sum()
    sums = [
        sum(first[i] for i in range(2)) + sum(second[i] for i in range(2))
        for first in permutations(won[:4].tolist())
        for second in permutations(won[4:].tolist())
    ]
    family = compare([one_context(choice)], task, won, 1.0)
    assert len(family.p) == 2 and family.tested.sum() == 1, "of two choices one comparison says it all"
    assert family.p[family.tested][0] == pytest.approx(min(1.0, 2 * np.mean(np.array(sums) >= reached)))


def test_the_difference_is_that_of_mantel_and_haenszel():
    rng = np.random.default_rng(3)
    task, choice, won = rng.integers(0, 5, 60), rng.integers(0, 2, 60), rng.random(60) < 0.5
    family = compare([one_context(choice)], task, won, 1.0)
    top = bottom = 0.0
    for number in range(5):
        one, other = won[(task == number) & (choice == 1)], won[(task == number) & (choice == 0)]
        weight = len(one) * len(other) / (len(one) + len(other))
        top, bottom = top + weight * (one.mean() - other.mean()), bottom + weight
    assert family.difference[family.choice == 1] == pytest.approx(top / bottom)


def test_a_normal_tail_is_close_to_the_exact_one(monkeypatch):
    rng = np.random.default_rng(5)
    task = np.repeat(np.arange(150), 8)
    choice = rng.integers(0, 2, 1200)
    won = rng.random(1200) < np.where(choice == 1, 0.13, 0.2)
    normal = compare([one_context(choice)], task, won, 0.05).p.min()
    monkeypatch.setattr(contrasts, "EXACT_VARIANCE", np.inf)
    exact = compare([one_context(choice)], task, won, 0.05).p.min()
    assert 1e-9 < exact < 1e-2 and normal == pytest.approx(exact, rel=0.05)


def test_comparisons_that_cannot_reach_the_level_are_not_counted():
    rng = np.random.default_rng(1)
    for _ in range(20):
        fewest = 10.0 ** -rng.uniform(0, 5, 40)
        counts = [k for k in range(1, 41) if (fewest <= 0.05 / k).sum() <= k]
        assert (within_reach(fewest, 0.05) == (fewest <= 0.05 / counts[0])).all()
    assert len(within_reach(np.zeros(0), 0.05)) == 0


def test_an_attempt_counts_once_however_often_it_has_a_choice():
    task, won = np.zeros(8, np.int64), np.arange(8) < 4
    once = rows([0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], range(8))
    assert compare([once], task, won, 1.0).p.min() == pytest.approx(2 / 70)


def test_where_nothing_decides_findings_are_rare():
    false = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        task = np.repeat(np.arange(20), 10)
        won = rng.random(200) < rng.random(20)[task]
        context, attempt = np.repeat(np.arange(15), 200), np.tile(np.arange(200), 15)
        visited = rng.random(3000) < 0.6
        table = rows(context[visited], rng.integers(0, 3, 3000)[visited], attempt[visited])
        false += bool((compare([table], task, won, 0.05).adjusted <= 0.05).any())
    assert false <= 18, "the 97.5 % bound of 200 draws at 5 %"


@pytest.mark.parametrize(
    ("size", "tasks", "rates"),
    [(2, 200, (0.5, 0.5)), (8, 50, (0.2, 0.7)), (8, 50, (0.9, 0.95)), (40, 10, (0.1, 0.3)), (20, 1, (0.05, 0.95))],
)
def test_intervals_cover_the_difference(size, tasks, rates):
    """Strata of `size` attempts, half of them with the choice; each task adds to both rates."""
    rng, covered = np.random.default_rng(7), 0
    task = np.repeat(np.arange(tasks), size)
    choice = np.tile(np.arange(size) % 2, tasks)
    for _ in range(400):
        won = rng.random(len(task)) < np.where(choice == 1, rates[1], rates[0])
        family = compare([one_context(choice)], task, won, 0.05)
        (i,) = np.flatnonzero(family.tested)
        low, high = family.interval(int(i))
        covered += low <= (rates[1] - rates[0]) * (1 if family.choice[i] == 1 else -1) <= high
    assert covered >= 0.92 * 400


def test_an_interval_says_what_the_test_says_of_a_few_attempts():
    """All of ten against none of eight, among 30 comparisons: p says that the difference is no chance, and so does the interval."""
    choice = np.array([1] * 10 + [0] * 8)
    tables = [one_context(choice) for _ in range(30)]
    family = compare(tables, np.zeros(18, np.int64), choice == 1, 0.01)
    low, high = family.interval(int(np.flatnonzero(family.tested)[0]))
    assert family.adjusted[family.tested].max() < 0.01 and 0.1 < max(low, -high) < 0.5
