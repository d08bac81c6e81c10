"""Credit: pure functions from rollouts to advantages, one file per algorithm; `registry.py` runs them by name."""

from turnwise.credit.columns import credit_of, give, parts_of
from turnwise.credit.diagnose import diagnose, explain, explained_options, explaining, observe, sizes
from turnwise.credit.registry import Credit, PerToken, PerTurn, algorithms, assign, compute, parts, register, split, stands_alone

__all__ = [
    "Credit",
    "PerToken",
    "PerTurn",
    "algorithms",
    "assign",
    "compute",
    "credit_of",
    "diagnose",
    "explain",
    "explained_options",
    "explaining",
    "give",
    "observe",
    "parts",
    "parts_of",
    "register",
    "sizes",
    "split",
    "stands_alone",
]
