"""PRS and VSPO (A16), as far as they are public: the value of a task, and which groups are replaced."""

from __future__ import annotations

from collections.abc import Sequence

from references.forms import deviation, mean


def value(returns: Sequence[float], ddof: int = 1) -> float:
    """V = (R_max - mu) sigma over the task's N returns; 0 for equal returns or one return. Which std is not said; std1 is ours."""
    return (max(returns) - mean(returns)) * deviation(returns, ddof)


def dead(returns: Sequence[float]) -> bool:
    """Whether the group has zero advantage and is to be replaced: all returns equal."""
    return max(returns) == min(returns)


def shares(groups: Sequence[Sequence[float]], ddof: int = 1) -> list[float]:
    """Probability per group of being the copy that replaces a dead one, in proportion to V (the law is not published; this is ours). All V
    are 0: all shares are 0 and nothing is replaced."""
    values = [value(g, ddof) for g in groups]
    whole = sum(values)
    return [v / whole if whole > 0 else 0.0 for v in values]
