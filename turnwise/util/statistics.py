"""Statistics for results: intervals, paired tests, effect sizes. Pure functions on numpy; randomness comes from a seed.

Two questions are always separated. *Over seeds*: would other training seeds give the same? The sample is a handful of runs, so intervals
are Student's t (a percentile bootstrap of five values is too narrow), and the assumption-free test flips the signs of the differences.
*Over tasks*: would other tasks give the same, with these trained models? The sample is the panel. Tasks that are variants of one
scenario end alike, so what counts is the number of scenarios: a *cluster* is a task, or all tasks of one scenario.

Flipping the signs of a thousand differences twenty thousand times would be slow one by one. Differences of success take few distinct
values, so the code draws how often each value occurs: one binomial number per value, whatever the panel's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z95 = 1.959963984540054
DRAWS = 20_000
EXACT_UP_TO = 16  # differences: up to 2^15 sign patterns are enumerated, more are sampled
EXACT_SHUFFLES = 50_000

Interval = tuple[float, float]


def wilson(successes: float, n: float, z: float = Z95) -> Interval:
    """The Wilson interval of a share, 95 % by default: accurate for few attempts and for shares near 0 or 1."""
    if n <= 0:
        return 0.0, 1.0
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and 1 the interval ends there; in floats it would be off by 1e-17.
    return (0.0 if successes <= 0 else max(0.0, centre - half)), (1.0 if successes >= n else min(1.0, centre + half))


def task_interval(successes: ArrayLike, attempts: ArrayLike) -> Interval:
    """The 95 % interval of the success rate over tasks, from the successes and attempts at each task or cluster of tasks: would others
    give the same?

    Attempts at one task are alike, so they count together: Wilson's interval with `effective_attempts` instead of the attempts. One
    attempt per task gives Wilson's interval itself, and so do ten equal ones."""
    won, tried = _array(successes), _array(attempts)
    n = effective_attempts(won, tried)
    if n <= 0:
        return 0.0, 1.0
    total, all_tried = float(won.sum()), float(tried.sum())
    return wilson(n if total >= all_tried else n * total / all_tried, n)


def effective_attempts(successes: ArrayLike, attempts: ArrayLike) -> float:
    """The number of independent attempts with the same information: between the number of clusters (attempts in one all end alike; Kish's
    number if clusters differ in size) and the number of attempts (clusters do not differ).

    p(1 − p) over the variance of the rate, which is estimated from the clusters, times a correction for few clusters (t at the effective
    number over t at the number of clusters, squared: Korn and Graubard). If all succeed, or none, nothing varies, and only the clusters
    count."""
    won, tried = _array(successes), _array(attempts)
    won, tried = won[tried > 0], tried[tried > 0]
    clusters, total = len(tried), float(tried.sum())
    if clusters < 2:
        return float(clusters)
    least = total**2 / float((tried**2).sum())
    share = float(won.sum()) / total
    if share <= 0 or share >= 1:
        return least
    variance = clusters / (clusters - 1) * float(((won - share * tried) ** 2).sum()) / total**2
    n = total if variance * total <= share * (1 - share) else share * (1 - share) / variance
    if n > least > 1:
        n *= (t_quantile(0.975, n - 1) / t_quantile(0.975, least - 1)) ** 2
    return min(max(n, least), total)


def by_cluster(values: ArrayLike, clusters: Sequence[str]) -> NDArray[np.float64]:
    """The sum of the tasks' values in each cluster. If all tasks are of one cluster, nothing is known of others: each task is its own."""
    array = _array(values)
    names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        return array
    sums: NDArray[np.float64] = np.bincount(codes, array).astype(np.float64)
    return sums


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error (0 for a single value)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)


def t_interval(values: ArrayLike, level: float = 0.95) -> Interval | None:
    """Student's interval of the mean. None for fewer than two values, whose spread is unknown, and for values that are all equal, as a few
    seeds on a small panel can be: an interval without width would suggest false certainty."""
    array = _array(values)
    if len(array) < 2:
        return None
    mean, error = mean_and_error(array.tolist())
    if error <= 1e-12 * max(1.0, abs(mean)):
        return None
    half = t_quantile(0.5 + level / 2, len(array) - 1) * error
    return mean - half, mean + half


def share_interval(shares: ArrayLike) -> Interval | None:
    """Student's interval of the mean of shares, which lies inside 0 to 1."""
    interval = t_interval(shares)
    return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))


def paired_t(differences: ArrayLike) -> float | None:
    """Two-sided p of Student's test that the mean difference is 0. None if there is no spread to compare it with: fewer than two
    differences, or all of them equal and not 0."""
    array = _array(differences)
    if len(array) < 2:
        return None
    mean, error = mean_and_error(array.tolist())
    if error <= 1e-12 * max(1.0, abs(mean)):
        return 1.0 if abs(mean) <= 1e-12 else None
    return min(1.0, 2 * t_tail(abs(mean / error), len(array) - 1))


def welch(one: ArrayLike, other: ArrayLike, level: float = 0.95) -> tuple[Interval, float] | None:
    """Interval and two-sided p of the difference of two means without pairs; the spreads may differ. None without any spread."""
    a, b = _array(one), _array(other)
    if len(a) < 2 or len(b) < 2:
        return None
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    error, difference = math.sqrt(sum(parts)), float(a.mean() - b.mean())
    if error <= 1e-12:
        return None
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    half = t_quantile(0.5 + level / 2, freedom) * error
    return (difference - half, difference + half), min(1.0, 2 * t_tail(abs(difference) / error, freedom))


def paired_interval(differences: ArrayLike, clusters: Sequence[str], attempts: int = 1, level: float = 0.95) -> Interval | None:
    """The interval of the mean difference of two success rates, from the differences task by task. `attempts`: how many each of the two
    rates of a task is the mean of. None for fewer than two clusters.

    Two tasks are added, one that either side wins, each as large as the noise of a task (1 / √attempts): without them the interval of a
    few tasks that happen to agree would have no width (Bonett and Price's interval of paired proportions). The error is that of
    clusters, the quantile Student's. A percentile bootstrap is too narrow below some fifty tasks."""
    array = _array(differences)
    sums, sizes = by_cluster(array, clusters), by_cluster(np.ones(len(array)), clusters)
    if len(sums) < 2:
        return None
    total, added = len(array) + 2, 1 / math.sqrt(attempts)
    mean = float(array.sum()) / total
    squares = float(((sums - mean * sizes) ** 2).sum()) + (added - mean) ** 2 + (added + mean) ** 2
    error = math.sqrt((len(sums) + 2) / (len(sums) + 1) * squares) / total
    half = t_quantile(0.5 + level / 2, len(sums) - 1) * error
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_flip(differences: ArrayLike, draws: int = DRAWS, seed: int = 0) -> float:
    """Two-sided p of the mean difference under random signs of the differences. Exact up to 16 nonzero differences; beyond that sampled,
    with the observed pattern included, so that p is never 0 and never too small."""
    array = _array(differences)
    moving = np.abs(array[array != 0])
    observed = abs(float(array.sum())) - 1e-9 * max(1.0, float(moving.sum()))
    if len(moving) <= EXACT_UP_TO:
        patterns = np.arange(1 << max(len(moving) - 1, 0))  # the first sign stays: the other half are mirror images
        signs = 1.0 - 2.0 * ((patterns[:, None] >> np.arange(len(moving))) & 1)
        return float(np.mean(np.abs(signs @ moving) >= observed))
    distinct, counts = np.unique(moving, return_counts=True)
    flips = np.random.default_rng(seed).binomial(counts, 0.5, size=(draws, len(counts)))
    reached = np.count_nonzero(np.abs((2 * flips - counts) @ distinct) >= observed)
    return float((reached + 1) / (draws + 1))


def smallest_sign_flip(n: int) -> float:
    """The smallest two-sided p that flipping the signs of n differences can give: 2 of the 2^n patterns are the extreme ones."""
    return 1.0 if n < 1 else 2.0 ** (1 - n)


def shuffle(one: ArrayLike, other: ArrayLike, draws: int = DRAWS, seed: int = 0) -> float:
    """Two-sided p of the difference of means under random labels, for groups without pairs. Exact if there are few enough ways to split
    the values."""
    a, b = _array(one), _array(other)
    pool, size = np.concatenate([a, b]), len(a)
    observed = abs(float(a.mean() - b.mean())) - 1e-9 * max(1.0, float(np.abs(pool).max(initial=0.0)))
    exact = math.comb(len(pool), size) <= EXACT_SHUFFLES
    if exact:
        chosen = np.array(list(combinations(range(len(pool)), size)))
    else:
        chosen = np.argsort(np.random.default_rng(seed).random((draws, len(pool))), axis=1)[:, :size]
    picked = pool[chosen].sum(axis=1)
    gaps = np.abs(picked / size - (pool.sum() - picked) / (len(pool) - size))
    reached = int(np.count_nonzero(gaps >= observed))
    return reached / len(gaps) if exact else (reached + 1) / (draws + 1)


def smallest_shuffle(n: int, m: int) -> float:
    """The smallest two-sided p that exchanging labels of n and m values can give."""
    return min(1.0, (2.0 if n == m else 1.0) / math.comb(n + m, n))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the probability of even one false finding among all of these tests stays below the level. In the given order."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, reached = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        reached = max(reached, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = reached
    return corrected


def cohen_d(differences: ArrayLike) -> float | None:
    """The mean difference in units of the differences' spread; none if there is no spread."""
    array = _array(differences)
    spread = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return float(array.mean()) / spread if spread > 1e-12 else None


def cohen_d_unpaired(one: ArrayLike, other: ArrayLike) -> float | None:
    """The difference of two means in units of the spread inside the groups."""
    a, b = _array(one), _array(other)
    if len(a) + len(b) < 3:
        return None
    inside = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
    spread = math.sqrt(inside / (len(a) + len(b) - 2))
    return float(a.mean() - b.mean()) / spread if spread > 1e-12 else None


def cohen_h(one: float, other: float) -> float:
    """The distance of two shares on the arcsine scale, on which equal steps are equally hard to detect: 0.2 is small, 0.5 medium, 0.8
    large."""
    return 2 * math.asin(math.sqrt(min(max(one, 0.0), 1.0))) - 2 * math.asin(math.sqrt(min(max(other, 0.0), 1.0)))


def _array(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64).ravel()


SMALL = 1e-300


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) for t ≥ 0."""
    return 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """The quantile t of a share ≥ 0.5 of the distribution."""
    if not 0.5 <= share < 1:
        raise ValueError(f"the share must be in [0.5, 1), not {share}")
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - share:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):  # adjacent floats: there is nothing between them
            break
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - share else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b): a continued fraction, on the side where it converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method for the continued fraction."""
    c, d = 1.0, 1.0 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > SMALL else SMALL
