"""How close is a credit to the true advantage? Two readings, each of a perfect credit 1.

For the turns i of a batch with credit c_i and true advantage A_i:

    correlation      Pearson's, over the turns of a batch. A constant credit has 0.
    gradient_cosine  the cosine between the policy gradient made with this credit and the exact one. A credit without gradient has 0.

They are taken batch by batch, so that their interval is over seeds. What is wrong on average, and what is noise, is the audit's question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.segments import segment_count, segment_sum
from turnwise.data.anchors import Ints
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


def truth_of(problem: Problem, policy: Floats, batch: Batch, runs: int, advantage: Floats) -> Truth:
    """`advantage` is the table [horizon, states, actions]; `policy` [states, actions]."""
    rows = advantage[batch.t, batch.state, batch.action]
    return Truth(batch, runs, rows, policy, exact_gradient(problem, policy))


def measure(credit: NDArray[Any], truth: Truth) -> dict[str, Floats]:
    """All readings, one number per run."""
    credit = np.asarray(credit, np.float64)
    return {
        "correlation": correlation(credit, truth.advantage, truth.batch.run, truth.runs),
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


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below; 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(below.shape), where=below > 1e-300)


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
