"""Credit: pure functions from rollouts to advantages. One file is one algorithm; `registry.py` runs them by name."""

from turnwise.credit.columns import credit_of, give, parts_of
from turnwise.credit.diagnose import diagnose, explain, shared_options, sizes
from turnwise.credit.registry import Credit, PerToken, PerTurn, algorithms, assign, compute, parts, register, split

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
    "give",
    "parts",
    "parts_of",
    "register",
    "shared_options",
    "sizes",
    "split",
]
