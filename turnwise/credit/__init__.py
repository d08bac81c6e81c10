"""Credit: pure functions from rollouts to advantages, one file per algorithm; `registry.py` runs them by name."""

from turnwise.credit.diagnose import diagnose, explain, explained_options, explaining, observe, sizes
from turnwise.credit.registry import Credit, PerToken, PerTurn, algorithms, assign, compute, parts, register, split

__all__ = [
    "Credit",
    "PerToken",
    "PerTurn",
    "algorithms",
    "assign",
    "compute",
    "diagnose",
    "explain",
    "explained_options",
    "explaining",
    "observe",
    "parts",
    "register",
    "sizes",
    "split",
]
