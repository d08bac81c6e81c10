"""The group statistics that credit functions share. Pure numpy on float64, linear in the number of rows.

A *segment* is a set of rows with the same dense integer (a task group, an anchor group, a trajectory). The first value of a segment is
subtracted from all its values first: a segment of equal values then gives exactly 0, whatever the value, instead of float noise divided
by a small epsilon.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.data.anchors import Ints, dense
from turnwise.data.rollouts import NOISE, Bools, Floats, Rollouts

Scalar = TypeVar("Scalar", bound=np.generic)
EPSILON = 1e-6  # added to a standard deviation before dividing by it

Norm = Annotated[Literal["std", "none"], Help("divide by the sample standard deviation + 1e-6, or do not divide")]
Weighting = Annotated[
    Literal["trajectory", "step"],
    Help("what counts once in the statistics; each trajectory (the papers) or each turn (the public code: long ones weigh more)"),
]
BatchWeighting = Annotated[
    Literal["trajectory", "step", "token"],
    Help("what counts once in the statistics; each trajectory, each turn, or each token (the public code: long ones weigh more)"),
]
Penalty = Annotated[float, Help("subtracted for a turn whose response could not be parsed", low=0)]
PER_TURN = Help("discount per turn", low=0, high=1)
TurnDiscount = Annotated[float, PER_TURN]


def segment_sum(values: Floats, segment: Ints, size: int) -> Floats:
    """The sum of each segment."""
    return np.bincount(segment, weights=values, minlength=size).astype(np.float64, copy=False)


def segment_count(segment: Ints, size: int) -> Ints:
    """The number of rows of each segment."""
    return np.bincount(segment, minlength=size)


def segment_first(values: NDArray[Scalar], segment: Ints, size: int) -> NDArray[Scalar]:
    """The first value of each segment (0 for an empty one)."""
    first = np.zeros(size, values.dtype)
    first[segment[::-1]] = values[::-1]  # numpy keeps the last assignment of a repeated index: the first row
    return first


def relative(values: Floats, segment: Ints, size: int) -> Floats:
    """Values minus their segment's first value; differences due to rounding become exactly 0."""
    reference = segment_first(values, segment, size).astype(np.float64)[segment]
    difference = values - reference
    difference[np.abs(difference) <= NOISE * np.maximum(np.abs(values), np.abs(reference))] = 0.0
    return difference


def standardise(values: Floats, segment: Ints, size: int, norm: str, weight: Floats | None = None, ddof: int = 1) -> Floats:
    """Values minus their segment's mean and, with norm "std", divided by its standard deviation + 1e-6.

    `weight` lets rows count less in the statistics (for example 1/visits, so that a trajectory counts once); the weights of a segment
    add up to its number of samples. A segment that is constant, or has one sample, gives exactly 0.
    """
    difference = relative(values, segment, size)
    weighted = difference if weight is None else difference * weight
    count = segment_count(segment, size).astype(np.float64) if weight is None else segment_sum(weight, segment, size)
    mean = segment_sum(weighted, segment, size) / np.maximum(count, EPSILON)
    centred = difference - mean[segment]
    single = count < 1.5
    if single.any():
        centred[single[segment]] = 0.0
    if norm == "none":
        return centred
    square = centred**2 if weight is None else centred**2 * weight
    std = np.sqrt(segment_sum(square, segment, size) / np.maximum(count - ddof, 1.0))
    return centred / (std + EPSILON)[segment]


def deviation(values: Floats, segment: Ints, size: int, ddof: int = 1) -> Floats:
    """The standard deviation of each segment; exactly 0 for a segment that is constant or has one value."""
    centred = standardise(values, segment, size, "none")
    count = segment_count(segment, size)
    return np.sqrt(segment_sum(centred**2, segment, size) / np.maximum(count - ddof, 1))


def whiten(values: Floats, count: Floats | None = None) -> Floats:
    """Values minus their mean, divided by sqrt(variance + 1e-8), over all rows; `count` says how often each row counts (its tokens, say).
    Equal values give exactly 0."""
    difference = relative(values, np.zeros(len(values), np.int64), 1)
    if not difference.any():
        return np.zeros(len(values))
    weight = np.ones(len(values)) if count is None else count
    total = max(float(weight.sum()), 1.0)
    centred = difference - float((weight * difference).sum()) / total
    return np.asarray(centred / np.sqrt(float((weight * centred**2).sum()) / max(total - 1.0, 1.0) + 1e-8))


def is_constant(values: Floats, segment: Ints, size: int) -> Bools:
    """Whether all values are equal, for each segment."""
    differing = (relative(values, segment, size) != 0).astype(np.float64)
    return np.asarray(segment_sum(differing, segment, size) == 0)


def reverse_scan(values: Floats, coefficient: Floats | float, segment: Ints) -> Floats:
    """y[i] = values[i] + coefficient · y[i+1] inside each run of equal `segment` values; the last row of a run has no successor.

    Doubling: after k passes y[i] holds the sum over the next 2^k rows, so a run of length T takes log2(T) vectorised passes and no
    division by vanishing powers of the coefficient.
    """
    total = np.array(values, np.float64)
    if len(total) == 0:
        return total
    link = np.zeros(len(total))
    ends = segment[:-1] != segment[1:]
    link[:-1] = np.where(ends, 0.0, coefficient if np.isscalar(coefficient) else np.asarray(coefficient)[:-1])
    borders = np.flatnonzero(np.concatenate([[True], ends, [True]]))
    longest, step = int(np.diff(borders).max()), 1
    product = np.empty(len(total))  # one buffer for all passes: fresh memory would cost as much as the sums
    while step < longest:
        total[:-step] += np.multiply(link[:-step], total[step:], out=product[:-step])
        if 2 * step < longest:
            link[:-step] = np.multiply(link[:-step], link[step:], out=product[:-step])
            link[-step:] = 0.0
        step *= 2
    return total


def pair(first: Ints, second: Ints) -> tuple[Ints, int]:
    """Dense ids of the pairs (first, second), and how many there are."""
    width = int(second.max()) + 1 if len(second) else 1
    distinct, code = dense(first * width + second)
    return code, len(distinct)


def token_sums(values: NDArray[np.floating], r: Rollouts) -> Floats:
    """The sum over the tokens of each turn; `values` has one entry per token."""
    total = np.concatenate([np.zeros(1), np.cumsum(values, dtype=np.float64)])
    return np.diff(total[r.token_offsets])


def last_turns(r: Rollouts) -> Bools:
    """True for the last turn of each trajectory, of rollouts that are in order."""
    last: Bools = np.append(r.trajectory[:-1] != r.trajectory[1:], True)
    return last


def discounted_returns(r: Rollouts, gamma: float) -> Floats:
    """Σ γ^k · reward of the turn k later, to the trajectory's end, for each turn of rollouts that are in order."""
    return reverse_scan(r.reward, gamma, r.trajectory)


def episode_returns(r: Rollouts) -> Floats:
    """The undiscounted sum of rewards of each trajectory, by trajectory code."""
    return segment_sum(r.reward, r.trajectory, len(r.trajectory_labels))


def trajectory_groups(r: Rollouts) -> Ints:
    """The group of each trajectory, by trajectory code."""
    return segment_first(r.group, r.trajectory, len(r.trajectory_labels)).astype(np.int64)


def unmasked(r: Rollouts, kept: Bools) -> Bools:
    """Which of the turns in `kept` the batch's own mask leaves in: what a credit function returns as `turn.mask`."""
    return np.asarray(kept & r.column("turn.mask").astype(bool)) if r.has("turn.mask") else kept


def shared_turns(r: Rollouts) -> tuple[Ints, int]:
    """Dense ids of turns, and how many there are: a branch and its parent have the same id for a turn that the branch took over."""
    if not r.has("trajectory.parent"):
        return np.arange(len(r)), len(r)
    parent, first_own = r.column("trajectory.parent"), r.column("trajectory.branch_t")
    owner = r.trajectory
    taken = (parent[owner] >= 0) & (r.t < first_own[owner])
    while taken.any():  # one pass per generation of branches
        owner = np.where(taken, parent[owner], owner)
        taken = (parent[owner] >= 0) & (r.t < first_own[owner])
    return pair(owner, r.t)
