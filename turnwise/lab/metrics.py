"""How close is a credit to the true advantage? Five readings, each of a perfect credit 1, 1, 1, 0 and 0.

For the turns i of a batch with credit c_i and true advantage A_i:

    correlation      Pearson's, over the turns of a batch. A constant credit has 0.
    sign_accuracy    the share of turns with A_i ≠ 0 whose credit has A_i's sign; a credit of exactly 0 counts as half, as a coin would.
                     Turns with A_i = 0 are not judged.
    gradient_cosine  the cosine between the policy gradient made with this credit and the exact one. A credit without gradient has 0.
    bias_squared,    of c / k against A, in units of mean A². k = Σ c A / Σ A², the least-squares slope of the credit on the truth over all
    variance         batches of that problem, group size and algorithm: the unit in which an unbiased credit equals A on average.

The first three are taken batch by batch, so that their interval is over seeds. Bias and variance share out the mean squared error of c / k.
With μ(t, s, a) the mean error of that situation and b(t, s) = Σ_a π(a|s) μ(t, s, a), bias² is the mean of (μ − b)²: wrong about
*actions*. All the rest is variance, also b: a credit that is off by the same amount for every action of a state is a poor baseline,
which adds noise to the gradient and no bias. Squares of means are estimated by products of errors from *different* seeds, so
that noise does not look like bias; such an estimate can come out slightly below 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.segments import segment_count, segment_sum
from turnwise.data.anchors import Ints, dense
from turnwise.data.rollouts import Floats
from turnwise.lab.problems import Problem
from turnwise.lab.sample import Batch
from turnwise.lab.values import exact_gradient
from turnwise.util.statistics import t_quantile

Interval = dict[str, float | None]


@dataclass(frozen=True)
class Truth:
    """What the credits of one batch are compared with, for all lines the same: made once."""

    batch: Batch
    runs: int
    advantage: Floats
    policy: Floats
    gradient: Floats
    situation: Ints  # dense id of (t, state) of each turn
    cell: Ints  # dense id of (t, state, action) of each turn


def truth_of(problem: Problem, policy: Floats, batch: Batch, runs: int, advantage: Floats) -> Truth:
    """`advantage` is the table [horizon, states, actions]; `policy` [states, actions]."""
    place = batch.t * problem.states + batch.state
    situation, cell = dense(place)[1], dense(place * problem.actions + batch.action)[1]
    rows = advantage[batch.t, batch.state, batch.action]
    return Truth(batch, runs, rows, policy, exact_gradient(problem, policy), situation, cell)


def measure(credit: NDArray[Any], truth: Truth) -> dict[str, Floats]:
    """The first three readings, one number per run."""
    credit = np.asarray(credit, np.float64)
    return {
        "correlation": correlation(credit, truth.advantage, truth.batch.run, truth.runs),
        "sign_accuracy": sign_accuracy(credit, truth.advantage, truth.batch.run, truth.runs),
        "gradient_cosine": gradient_cosine(credit, truth),
    }


def correlation(credit: Floats, truth: Floats, run: Ints, runs: int) -> Floats:
    """Pearson's correlation of each run; 0 if either side is constant."""
    count = np.maximum(segment_count(run, runs), 1)

    def centred(values: Floats) -> Floats:
        mean = segment_sum(values, run, runs) / count
        rest = values - mean[run]
        rest[np.abs(rest) < 1e-9 * np.maximum(np.abs(values), 1e-300)] = 0.0
        return rest

    one, two = centred(credit), centred(truth)
    both = segment_sum(one * two, run, runs)
    size = np.sqrt(segment_sum(one**2, run, runs)) * np.sqrt(segment_sum(two**2, run, runs))
    return ratio(both, size)


def sign_accuracy(credit: Floats, truth: Floats, run: Ints, runs: int) -> Floats:
    """See above; NaN for a run in which no turn is judged."""
    judged = truth != 0
    right = np.where(credit == 0, 0.5, np.sign(credit) == np.sign(truth))
    total = segment_count(run[judged], runs).astype(np.float64)
    return ratio(segment_sum(right[judged], run[judged], runs), total, otherwise=np.nan)


def ratio(above: Floats, below: Floats, otherwise: float = 0.0) -> Floats:
    """above / below; `otherwise` where below is 0."""
    return np.divide(above, below, out=np.full(below.shape, otherwise), where=below > 1e-300)


def policy_gradient(credit: Floats, batch: Batch, policy: Floats) -> Floats:
    """Σ credit · ∇ log π(action|state) by the logits, [runs, states, actions]; `policy` has the same shape, or no runs."""
    states, actions = policy.shape[-2:]
    runs = len(batch.offsets) - 1
    place = (batch.run * states + batch.state) * actions + batch.action
    taken = segment_sum(credit, place, runs * states * actions).reshape(runs, states, actions)
    return np.asarray(taken - taken.sum(axis=-1, keepdims=True) * policy)


def gradient_cosine(credit: Floats, truth: Truth) -> Floats:
    """The cosine with the exact gradient, one number per run."""
    estimate = policy_gradient(credit, truth.batch, truth.policy).reshape(truth.runs, -1)
    exact = truth.gradient.ravel()
    length = np.linalg.norm(estimate, axis=1)
    return ratio(estimate @ exact, np.where(length > 1e-9, length * np.linalg.norm(exact), 0.0))


def bias_and_variance(credit: NDArray[Any], truth: Truth) -> dict[str, Interval]:
    """Both with 95 % intervals by the jackknife over seeds, k held fixed. Empty if k's interval includes 0: no signal to scale by."""
    credit = np.asarray(credit, np.float64)
    run, runs, advantage = truth.batch.run, truth.runs, truth.advantage
    power = segment_sum(advantage**2, run, runs)
    product = segment_sum(credit * advantage, run, runs)
    slope = interval(ratio(product, power, otherwise=np.nan))
    nothing: Interval = {"mean": None, "low": None, "high": None}
    if slope["low"] is None or slope["low"] <= 0:
        return {"bias_squared": nothing, "variance": nothing}
    error = credit / (product.sum() / power.sum()) - advantage
    bias = squared_mean(error, truth.cell, run, runs) - squared_mean(error, truth.situation, run, runs)
    count = segment_count(run, runs).astype(np.float64)
    squares = segment_sum(error**2, run, runs)
    unit = _leave_one_out(power) / _leave_one_out(count)
    total = _leave_one_out(squares) / _leave_one_out(count) / unit
    return {"bias_squared": jackknife(bias / unit), "variance": jackknife(total - bias / unit)}


def _leave_one_out(values: Floats) -> Floats:
    """Sums over the first axis, the runs: over all of them (entry 0) and over all but one."""
    return np.asarray(np.concatenate([np.zeros_like(values[:1]), -values]) + values.sum(axis=0))


def squared_mean(error: Floats, part: Ints, run: Ints, runs: int) -> Floats:
    """The mean over turns of (mean error of the turn's part)², for all runs (entry 0) and without each one. Products of turns of the same
    run are left out; parts that only one run has seen count as 0."""
    parts = int(part.max()) + 1
    place = run * parts + part
    sums: Floats = segment_sum(error, place, runs * parts).reshape(runs, parts)
    counts: Floats = segment_count(place, runs * parts).astype(np.float64).reshape(runs, parts)
    n = _leave_one_out(counts)
    pairs = n**2 - _leave_one_out(counts**2)
    cross = _leave_one_out(sums) ** 2 - _leave_one_out(sums**2)
    mean_square = ratio(cross, np.where(pairs > 0.5, pairs, 0.0))
    return np.asarray((n * mean_square).sum(axis=1) / np.maximum(n.sum(axis=1), 1))


def interval(values: Floats) -> Interval:
    """The mean over seeds and its 95 % confidence interval by Student's t; seeds without a reading are left out."""
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return {"mean": None, "low": None, "high": None}
    mean = float(known.mean())
    if len(known) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = t_quantile(0.975, len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def jackknife(values: Floats) -> Interval:
    """The estimate from all seeds (entry 0) and its 95 % interval from the estimates without each one."""
    left_out = values[1:]
    n = len(left_out)
    if n < 2:
        return {"mean": float(values[0]), "low": None, "high": None}
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    half = t_quantile(0.975, n - 1) * error
    return {"mean": float(values[0]), "low": float(values[0]) - half, "high": float(values[0]) + half}
