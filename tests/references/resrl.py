"""ResRL (B13): in failed samples, tokens whose hidden state lies inside the subspace of successful samples are punished less.

Source: 1229095296/ResRL, commit 58d7d5dd7531e3900f523269b717f510a66ebd82, `verl/workers/actor/dp_actor.py`:
`_compute_svd_token_weights` and the loop of `update_policy` that applies the weights. Confirmed by executing
`_compute_svd_token_weights` (tests/golden/resrl.json; float32, largest difference 4e-7 of a weight; with their 4 power iterations
`torch.pca_lowrank` is random, and weights differ by up to 3e-4, so the stored cases use 40).

What the authors' code does in corner cases: weight 1 for every token of a failure if the group has no success, no failure, or fewer
than 4 tokens in its successes; (least + 1) / 2 if the quantiles are closer than 1e-5; the rank is at most the number of positive
tokens - 1. The mean that is subtracted is that of the successes, for the failures too. A sample is a success if its score is above
0. The authors take groups inside a micro-batch, and at most 4096 positive tokens, drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import clip, mean, quantile

Vector = list[float]


def layer_normed(h: Sequence[float], eps: float = 1e-5) -> Vector:
    """(h - mean)/sqrt(var + eps) over the coordinates, var biased, no gain and no bias."""
    m = mean(h)
    var = mean([(x - m) ** 2 for x in h])
    return [(x - m) / math.sqrt(var + eps) for x in h]


def eigenvectors(matrix: list[Vector], sweeps: int = 60) -> list[tuple[float, Vector]]:
    """(eigenvalue, unit eigenvector) of a symmetric matrix, largest first, by cyclic Jacobi rotations."""
    n = len(matrix)
    a = [list(row) for row in matrix]
    v = [[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]
    for _ in range(sweeps):
        for p in range(n):
            for q in range(p + 1, n):
                if abs(a[p][q]) > 1e-300:
                    _rotate(a, v, p, q)
    pairs = [(a[i][i], [v[k][i] for k in range(n)]) for i in range(n)]
    return sorted(pairs, key=lambda pair: -pair[0])


def _rotate(a: list[Vector], v: list[Vector], p: int, q: int) -> None:
    theta = (a[q][q] - a[p][p]) / (2 * a[p][q])
    t = (1.0 if theta >= 0 else -1.0) / (abs(theta) + math.sqrt(theta * theta + 1))
    c = 1 / math.sqrt(t * t + 1)
    s = t * c
    n = len(a)
    for k in range(n):
        a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
    for k in range(n):
        a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
    for k in range(n):
        v[k][p], v[k][q] = c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]


def residuals(positive: Sequence[Sequence[float]], negative: Sequence[Sequence[float]], rank: int = 64) -> list[float]:
    """e per negative token: ||x - V V^T x||^2 / d, x the layer-normed hidden state minus the mean of the positive ones.

    V: the first k = min(rank, positive tokens - 1, d) principal directions of the layer-normed, centred positive hidden states. Not
    unique if eigenvalues k and k + 1 are equal.
    """
    xs = [layer_normed(h) for h in positive]
    d = len(xs[0])
    mu = [mean([x[j] for x in xs]) for j in range(d)]
    xs = [[x[j] - mu[j] for j in range(d)] for x in xs]
    cov = [[math.fsum(x[i] * x[j] for x in xs) for j in range(d)] for i in range(d)]
    basis = [vector for _, vector in eigenvectors(cov)[: min(rank, len(xs) - 1, d)]]
    result = []
    for h in negative:
        x = [y - m for y, m in zip(layer_normed(h), mu, strict=True)]
        for vector in basis:
            dot = math.fsum(a * b for a, b in zip(x, vector, strict=True))
            x = [a - dot * b for a, b in zip(x, vector, strict=True)]
        result.append(math.fsum(a * a for a in x) / d)
    return result


def weights(distances: Sequence[float], low: float = 0.2, high: float = 0.8, least: float = 0.1) -> list[float]:
    """w = least + (1 - least) clip((e - q_low)/(q_high - q_low), 0, 1), quantiles over the group's negative tokens.

    q_high - q_low < 1e-5: the middle (least + 1)/2 for all, as the code does.
    """
    bottom, top = quantile(distances, low), quantile(distances, high)
    if top - bottom < 1e-5:
        return [(least + 1) / 2 for _ in distances]
    return [least + (1 - least) * clip((e - bottom) / (top - bottom), 0.0, 1.0) for e in distances]


def token_weights(
    hidden: Sequence[Sequence[Sequence[float]]],
    positive: Sequence[bool],
    rank: int = 64,
    low: float = 0.2,
    high: float = 0.8,
    least: float = 0.1,
    gain: float = 0.1,
) -> list[list[float]]:
    """Factors on the advantages of ONE group: hidden[i][t] of trajectory i. Successes: `gain` on all tokens. Failures: the weights above.

    No success, or fewer than 4 positive tokens: failures keep weight 1.
    """
    good = [h for row, p in zip(hidden, positive, strict=True) if p for h in row]
    bad = [h for row, p in zip(hidden, positive, strict=True) if not p for h in row]
    values = weights(residuals(good, bad, rank), low, high, least) if len(good) >= 4 and bad else [1.0 for _ in bad]
    it = iter(values)
    return [[gain for _ in row] if p else [next(it) for _ in row] for row, p in zip(hidden, positive, strict=True)]
