"""Student's t distribution without scipy: the tail by the incomplete beta function, the quantile by bisection."""

from __future__ import annotations

import math
from functools import lru_cache

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
