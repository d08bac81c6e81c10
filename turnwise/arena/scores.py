"""Statistics over environments and seeds. Pure functions on arrays of scores in [0, 1], float64[environments, seeds] for one method.

An environment is a stratum: which ones there are is the arena's choice, so only seeds are resampled, and each environment keeps its number
of seeds. Runs of the same seed start from the same weights and see the same tasks, so methods are compared seed by seed. Bootstrap
intervals are the estimate plus quantiles of the resampled deviations, which are first stretched by √(n / (n − 1)): resampling n seeds
shows only (n − 1) / n of their variance, which matters for eight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.util.statistics import Interval, t_quantile, t_tail

Scores = NDArray[np.float64]  # [environments, seeds]
DRAWS = 2_000


@dataclass(frozen=True)
class Difference:
    """One method minus another, mean over environments of the mean over seeds. `detectable`: the difference that these seeds would have
    shown with a probability of 80 %."""

    difference: float
    interval: Interval | None
    p: float | None
    detectable: float | None


@dataclass(frozen=True)
class Sigmoid:
    """success(x) = start + (ceiling − start) / (1 + (half / x)^steepness): how good a method gets, and how fast. x counts attempts or
    tokens; at `half` it has made half of its way."""

    start: float
    ceiling: float
    half: float
    steepness: float
    error: float  # root mean square of the residuals


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half, along the last axis; values at its ends count in part."""
    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    ranks = np.arange(n)
    weights = np.clip(np.minimum(ranks + 1, 0.75 * n) - np.maximum(ranks, 0.25 * n), 0.0, 1.0)
    result: NDArray[np.float64] = (ordered * weights).sum(axis=-1) / weights.sum()
    return result


def overall_mean(scores: Scores) -> float:
    return float(scores.mean())


def overall_iqm(scores: Scores) -> float:
    return float(interquartile_mean(scores.ravel()))


def resampled(scores: NDArray[np.float64], draws: int, seed: int) -> NDArray[np.float64]:
    """Scores with seeds drawn anew in each environment, float64[draws, …, environments, seeds]. Methods that are stacked in front share
    the draws, so that pairs stay pairs."""
    environments, seeds = scores.shape[-2:]
    chosen = np.random.default_rng(seed).integers(seeds, size=(draws, environments, seeds))
    index = chosen.reshape(draws, *(1,) * (scores.ndim - 2), environments, seeds)
    return np.take_along_axis(np.broadcast_to(scores, (draws, *scores.shape)), np.broadcast_to(index, (draws, *scores.shape)), axis=-1)


def bootstrap(
    scores: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    bounds: Interval = (0.0, 1.0),
) -> Interval | None:
    """The 95 % interval of a statistic, which takes arrays [draws, …, environments, seeds] and gives one number per draw. None for a
    single seed, of which nothing can be drawn."""
    n = scores.shape[-1]
    if n < 2:
        return None
    estimate = float(statistic(scores[None])[0])
    deviations = (statistic(resampled(scores, draws, seed)) - estimate) * math.sqrt(n / (n - 1))
    low, high = np.quantile(deviations, [0.025, 0.975])
    return max(bounds[0], estimate + float(low)), min(bounds[1], estimate + float(high))


def mean_interval(scores: Scores, seed: int = 0) -> Interval | None:
    return bootstrap(scores, lambda drawn: drawn.mean(axis=(-1, -2)), seed=seed)


def iqm_interval(scores: Scores, seed: int = 0) -> Interval | None:
    return bootstrap(scores, lambda drawn: interquartile_mean(drawn.reshape(len(drawn), -1)), seed=seed)


def difference(one: Scores, other: Scores, level: float = 0.95) -> Difference:
    """Paired by seed: Student's interval and two-sided p of the mean over environments, each with its own spread over seeds (degrees of
    freedom by Satterthwaite). None without any spread."""
    differences = one - other
    environments, n = differences.shape
    estimate = float(differences.mean())
    if n < 2:
        return Difference(estimate, None, None, None)
    parts = differences.var(axis=1, ddof=1) / n / environments**2
    error = math.sqrt(float(parts.sum()))
    if error <= 1e-12:
        return Difference(estimate, None, 1.0 if abs(estimate) <= 1e-12 else None, None)
    freedom = float(parts.sum()) ** 2 / float((parts**2).sum() / (n - 1))
    quantile = t_quantile(0.5 + level / 2, freedom)
    p = min(1.0, 2 * t_tail(abs(estimate) / error, freedom))
    interval = (max(-1.0, estimate - quantile * error), min(1.0, estimate + quantile * error))
    return Difference(estimate, interval, p, (quantile + t_quantile(0.8, freedom)) * error)


def improvement(one: Scores, other: Scores) -> float:
    """The probability that a run of the one beats a run of the other on the same environment, mean over environments; ties count half."""
    return float(_improvement(np.stack([one, other])[None])[0])


def improvement_interval(one: Scores, other: Scores, seed: int = 0) -> Interval | None:
    return bootstrap(np.stack([one, other]), _improvement, seed=seed)


def _improvement(both: NDArray[np.float64]) -> NDArray[np.float64]:
    gaps = both[:, 0, :, :, None] - both[:, 1, :, None, :]
    result: NDArray[np.float64] = ((gaps > 0) + 0.5 * (gaps == 0)).mean(axis=(1, 2, 3))
    return result


def ranks(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank 1 is the largest along the last axis; equal values share the mean of their ranks."""
    above = (means[..., None, :] > means[..., :, None]).sum(axis=-1)
    equal = (means[..., None, :] == means[..., :, None]).sum(axis=-1)
    result: NDArray[np.float64] = above + (equal + 1) / 2
    return result


def rank_intervals(methods: Mapping[str, Scores], draws: int = DRAWS, seed: int = 0) -> dict[str, tuple[float, float, float]]:
    """For each method its rank by mean score, and the 2.5 % and 97.5 % quantiles of its rank over resampled seeds. For a single seed,
    every rank is possible."""
    stacked = np.stack(list(methods.values()))
    estimate = ranks(stacked.mean(axis=(1, 2)))
    if stacked.shape[-1] < 2:
        return {name: (float(rank), 1.0, float(len(methods))) for name, rank in zip(methods, estimate, strict=True)}
    drawn = ranks(resampled(stacked, draws, seed).mean(axis=(-1, -2)))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return {name: (float(estimate[i]), float(low[i]), float(high[i])) for i, name in enumerate(methods)}


def profile(scores: Scores, thresholds: Sequence[float]) -> list[float]:
    """The share of runs whose score exceeds each threshold, mean over environments."""
    return [float((scores > threshold).mean()) for threshold in thresholds]


def fit_sigmoid(x: Sequence[float], y: Sequence[float]) -> Sigmoid | None:
    """Least squares over a grid of `half` and `steepness`, refined twice; start and ceiling follow linearly, the ceiling within [0, 1].
    None for fewer than five points, and for curves that do not rise."""
    at, success = np.asarray(x, np.float64), np.asarray(y, np.float64)
    positive = at > 0
    if positive.sum() < 4 or len(at) < 5 or success[-1] <= success[0]:
        return None
    low, high = math.log(float(at[positive].min()) / 4), math.log(float(at.max()) * 4)
    steep_low, steep_high = math.log(0.3), math.log(8.0)
    best: Sigmoid | None = None
    for _ in range(3):
        half = np.exp(np.linspace(low, high, 33))
        steepness = np.exp(np.linspace(steep_low, steep_high, 33))
        best = _best_on_grid(at, success, half, steepness)
        step, steep_step = (high - low) / 16, (steep_high - steep_low) / 16
        low, high = math.log(best.half) - step, math.log(best.half) + step
        steep_low, steep_high = math.log(best.steepness) - steep_step, math.log(best.steepness) + steep_step
    return best


def _best_on_grid(x: NDArray[np.float64], y: NDArray[np.float64], half: NDArray[np.float64], steepness: NDArray[np.float64]) -> Sigmoid:
    with np.errstate(divide="ignore", over="ignore"):
        rise = 1 / (1 + (half[:, None, None] / x) ** steepness[None, :, None])  # [half, steepness, points]
    rise = np.where(x > 0, rise, 0.0)
    centred, target = rise - rise.mean(axis=-1, keepdims=True), y - y.mean()
    spread = np.maximum((centred**2).sum(axis=-1), 1e-12)
    slope = (centred @ target) / spread
    start = np.clip(y.mean() - slope * rise.mean(axis=-1), 0.0, 1.0)
    ceiling = np.clip(start + slope, 0.0, 1.0)
    error = np.sqrt(((start[..., None] + (ceiling - start)[..., None] * rise - y) ** 2).mean(axis=-1))
    i, k = np.unravel_index(int(error.argmin()), error.shape)
    return Sigmoid(float(start[i, k]), float(ceiling[i, k]), float(half[i]), float(steepness[k]), float(error[i, k]))


def split_half(methods: Mapping[str, Scores], splits: int = 200, seed: int = 0) -> float | None:
    """Spearman's correlation of the methods' ranks by one half of the seeds with those by the other, mean over random halves. None for
    fewer than three methods or two seeds."""
    stacked = np.stack(list(methods.values()))
    n = stacked.shape[-1]
    if len(stacked) < 3 or n < 2:
        return None
    rng = np.random.default_rng(seed)
    correlations = []
    for _ in range(splits):
        order = rng.permutation(n)
        first, second = (ranks(stacked[..., part].mean(axis=(1, 2))) for part in (order[: n // 2], order[n // 2 :]))
        if first.std() > 0 and second.std() > 0:
            correlations.append(float(np.corrcoef(first, second)[0, 1]))
    return math.fsum(correlations) / len(correlations) if correlations else None
