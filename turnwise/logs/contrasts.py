"""Which choices go with won and lost attempts: many comparisons within tasks at once, exact, and corrected for their number.

A *context* is where attempts can be compared: a state, a call, or the task as a whole. A *choice* is what an attempt did or met there. The
attempts at one task that were in one context are a stratum, and each attempt counts once in it. Given how many of a stratum won, and how
many made the choice, the number of those that did both is hypergeometric if the choice does not matter; the test (of Cochran, Mantel and
Haenszel) adds it up over the strata. Its tails are exact where that sum varies little, and normal with a correction for skewness
elsewhere. The difference is that of Mantel and Haenszel with Sato's variance; the interval inverts the test, which keeps it inside −1 to 1
and accurate for strata of two attempts.

Only comparisons that could reach the level are counted (Tarone's rule); that depends on who chose what and never on who of them won.
Holm's correction then bounds the probability of even one false finding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from turnwise.credit.segments import pair, segment_count, segment_first, segment_sum
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats
from turnwise.logs.columns import varies
from turnwise.util.statistics import Interval, holm

EXACT_VARIANCE = 100.0  # below, distributions are added up exactly; above, the error of the corrected normal tail is a few per cent
SMALLEST = 1e-300
MOST_EXACT = 300  # comparisons of a family whose p is computed: those that look the most certain


@dataclass(frozen=True, eq=False)
class Rows:
    """One row for each choice that an attempt made in a context, and the turn at which it first did. Choice −1 only says that the attempt
    was there. With `partition`, an attempt has one choice in a context. With `one_sided`, only choices that go with failure count."""

    context: Ints
    choice: Ints
    attempt: Ints
    turn: Ints
    partition: bool = True
    one_sided: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """Comparisons of a kind, one entry each: `table` and `context` say where, `choice` which choice is compared with all others. `n1`
    attempts made it and `y1` of them won, `n0` and `y0` made another one, in the `tasks` that have both. `weight`, `slope`, `base` and
    `separate`, the standard error of two separate shares, are what the interval needs. `fewest` is the smallest p that is possible with
    who chose what; `p` is 1 where it was not `tested`, and `adjusted` accounts for the number that was."""

    table: Ints
    context: Ints
    choice: Ints
    tasks: Ints
    n1: Ints
    y1: Ints
    n0: Ints
    y0: Ints
    difference: Floats
    weight: Floats
    slope: Floats
    base: Floats
    separate: Floats
    fewest: Floats
    tested: Bools
    one_sided: Bools
    p: Floats
    adjusted: Floats
    level: float

    def interval(self, i: int) -> Interval:
        """The interval of a difference, simultaneous over all that were tested. The end near 0 is also known from the test (Miettinen
        1976): the difference lies as many standard errors from 0 as its p says, unless that of two separate shares is larger. Of both
        ends the one further from 0 counts: the variance of the interval is too large where few attempts differ much."""
        z = NormalDist().inv_cdf(1 - self.level / (2 * max(1, int(self.tested.sum()))))
        difference = float(self.difference[i])
        low, high = difference_interval(difference, float(self.weight[i]), float(self.slope[i]), float(self.base[i]), z)
        distance = -NormalDist().inv_cdf(float(self.p[i]) / (1 if self.one_sided[i] else 2))
        if distance <= 0:
            return low, high
        near = difference - math.copysign(z * max(abs(difference) / distance, float(self.separate[i])), difference)
        return (max(low, near), high) if difference > 0 else (low, min(high, near))


def compare(tables: list[Rows], task: Ints, won: Bools, level: float) -> Family:
    """All comparisons of these tables, as one family. `task` and `won` have an entry for each attempt."""
    starts = np.cumsum([0] + [int(rows.context.max(initial=-1)) + 1 for rows in tables])
    context = np.concatenate([rows.context + start for rows, start in zip(tables, starts[:-1], strict=True)])
    choice, attempt = np.concatenate([rows.choice for rows in tables]), np.concatenate([rows.attempt for rows in tables])

    # strata: the attempts at one task in one context
    visit, visits = pair(context, attempt)
    visitor = segment_first(attempt, visit, visits)
    stratum_of_visit, strata = pair(segment_first(context, visit, visits), task[visitor])
    n, y = segment_count(stratum_of_visit, strata), segment_sum(won[visitor].astype(np.float64), stratum_of_visit, strata).astype(np.int64)

    # cells: those of a stratum that made one choice
    real = choice >= 0
    context, choice, attempt, stratum = context[real], choice[real], attempt[real], stratum_of_visit[visit[real]]
    owner, comparisons = pair(context, choice)
    cell, cells = pair(owner, stratum)
    owner_of, stratum_of = segment_first(owner, cell, cells), segment_first(stratum, cell, cells)
    n1, y1 = segment_count(cell, cells), segment_sum(won[attempt].astype(np.float64), cell, cells).astype(np.int64)
    both = n1 < n[stratum_of]
    owner_of, stratum_of, n1, y1 = owner_of[both], stratum_of[both], n1[both], y1[both]
    n, y = n[stratum_of], y[stratum_of]

    # comparisons with both sides in some task; of a context with two choices, one comparison says it all
    informative, code = np.unique(owner_of, return_inverse=True)
    size = len(informative)
    contexts, choices = segment_first(context, owner, comparisons)[informative], segment_first(choice, owner, comparisons)[informative]
    table = np.searchsorted(starts, contexts, side="right") - 1
    twin = (segment_count(contexts, int(starts[-1]))[contexts] == 2) & np.array([rows.partition for rows in tables], np.bool_)[table]
    mirrored = twin & np.concatenate([[False], contexts[1:] == contexts[:-1]])[:size]
    one_sided = np.array([rows.one_sided for rows in tables], np.bool_)[table]
    mixed = varies(task, won)[segment_first(task[visitor], stratum_of_visit, strata)[stratum_of]]
    fewest = np.where(one_sided, 1.0, 2.0) * np.exp(-segment_sum(np.where(mixed, _log_ways(n, n1), 0.0), code, size))
    fewest[mirrored] = np.inf
    tested = within_reach(fewest, level)

    def total(values: Ints | Floats) -> Floats:
        return segment_sum(np.asarray(values, np.float64), code, size)

    n0, y0 = n - n1, y - y1
    weight = total(n1 * n0 / n)
    slope = total((n1**2 * y0 - n0**2 * y1 + n1 * n0 * (n0 - n1) / 2) / n**2)
    base = total((y1 * (n0 - y0) + y0 * (n1 - y1)) / (2 * n))
    p = _p_values((code, n, y, n1, y1), one_sided, tested)
    adjusted = np.ones(size)
    adjusted[tested] = holm(p[tested].tolist())
    return Family(
        table,
        contexts - starts[table],
        choices,
        segment_count(code, size),
        n1=total(n1).astype(np.int64),
        y1=total(y1).astype(np.int64),
        n0=total(n0).astype(np.int64),
        y0=total(y0).astype(np.int64),
        difference=total((y1 * n0 - y0 * n1) / n) / weight,
        weight=weight,
        slope=slope,
        base=base,
        separate=np.sqrt(total((n1 * n0 / n) ** 2 * (y1 * (n1 - y1) / n1**3 + y0 * (n0 - y0) / n0**3))) / weight,
        fewest=fewest,
        tested=tested,
        one_sided=one_sided,
        p=p,
        adjusted=adjusted,
        level=level,
    )


def within_reach(fewest: Floats, level: float) -> Bools:
    """Tarone's rule: the comparisons whose smallest possible p is at most level / k, for the smallest k that at most k of them reach."""
    ranks = np.arange(1, len(fewest) + 1)
    if len(ranks) == 0:
        return np.zeros(0, np.bool_)
    reach = np.searchsorted(np.sort(fewest), level / ranks, side="right")
    return np.asarray(fewest <= level / ranks[np.argmax(reach <= ranks)])


def difference_interval(difference: float, weight: float, slope: float, base: float, z: float) -> Interval:
    """All differences d with (difference − d)² ≤ z² (d · slope + base) / weight²: the variance is that under d (Klingenberg 2014)."""
    middle = difference + z * z * slope / (2 * weight * weight)
    half = math.sqrt(max(0.0, middle * middle - difference * difference + z * z * base / (weight * weight)))
    return max(-1.0, middle - half), min(1.0, middle + half)


def _p_values(cells: tuple[Ints, Ints, Ints, Ints, Ints], one_sided: Bools, tested: Bools) -> Floats:
    """The p of the comparisons that look the most certain; 1 for the others, which is never too small."""
    code, n, y, n1, y1 = cells
    size = len(tested)
    share, rest, after = y / n, n - y, np.maximum(n - 1, 1)
    variance = segment_sum(n1 * share * rest * (n - n1) / (n * after), code, size)
    third = segment_sum(n1 * y * rest * (n - n1) * (n - 2.0 * y) * (n - 2.0 * n1) / (n**3.0 * after * np.maximum(n - 2, 1)), code, size)
    distance = segment_sum(y1 - n1 * share, code, size)
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    z = np.maximum(np.abs(distance) - 0.5, 0.0) / deviation
    z = np.maximum(0.0, z - np.sign(distance) * third / deviation**3 * (z * z - 1) / 6)
    wanted = tested & (variance > 0) & ~(one_sided & (distance >= 0))
    candidates = np.flatnonzero(wanted)
    candidates = np.sort(candidates[np.argsort(-z[candidates], kind="stable")[:MOST_EXACT]])
    order = np.argsort(code, kind="stable")
    starts = np.searchsorted(code[order], np.arange(size + 1))
    p = np.ones(size)
    for i in candidates.tolist():
        if variance[i] >= EXACT_VARIANCE:
            tail = math.erfc(z[i] / math.sqrt(2)) / 2
        else:
            rows = order[starts[i] : starts[i + 1]]
            tail = exact_tail(n[rows], y[rows], n1[rows], int(y1[rows].sum()), lower=bool(distance[i] < 0))
        p[i] = min(1.0, max(SMALLEST, tail if one_sided[i] else 2 * tail))
    return p


def exact_tail(n: Ints, y: Ints, n1: Ints, reached: int, lower: bool) -> float:
    """The probability that the sum of independent hypergeometric numbers (n1 drawn of n, of which y count) is as low as `reached`, or as
    high."""
    few, many, width = np.minimum(y, n1), np.maximum(y, n1), int(n.max()) + 1
    tables, times = np.unique((n * width + many) * width + few, return_counts=True)
    logs, least, distribution = _log_factorials(width), 0, np.ones(1)
    for table, count in zip(tables.tolist(), times.tolist(), strict=True):
        attempts, drawn, counted = table // width // width, table // width % width, table % width
        lowest = max(0, counted + drawn - attempts)
        least += count * lowest
        k = np.arange(lowest, counted + 1)
        ways = logs[k] + logs[counted - k] + logs[drawn - k] + logs[attempts - drawn - counted + k]
        fixed = logs[drawn] + logs[attempts - drawn] + logs[counted] + logs[attempts - counted] - logs[attempts]
        single = np.exp(fixed - ways)
        while count:  # the distribution of equal strata by squaring
            if count & 1:
                distribution = np.convolve(distribution, single)
            count >>= 1
            if count:
                single = np.convolve(single, single)
    reached -= least
    return float(min(1.0, distribution[: reached + 1].sum() if lower else distribution[reached:].sum()))


@lru_cache(maxsize=64)
def _log_factorials(size: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])


def _log_ways(n: Ints, k: Ints) -> Floats:
    """The logarithm of the number of ways to choose k of n."""
    logs = _log_factorials(int(n.max(initial=1)))
    return np.asarray(logs[n] - logs[k] - logs[n - k])
