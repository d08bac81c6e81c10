"""Credit: pure functions from rollouts to advantages, one file per algorithm; `registry.py` runs them by name."""

from turnwise.credit.columns import credit_of, give, parts_of
from turnwise.credit.diagnose import diagnose, explain, explained_options, explaining, observe, sizes
from turnwise.credit.registry import Credit, PerToken, PerTurn, algorithms, assign, compute, parts, register, split, stands_alone
from turnwise.credit.spans import on_tokens, spans_of, spread
from turnwise.credit.tables import TableCredit, of_table

__all__ = [
    "Credit",
    "PerToken",
    "PerTurn",
    "TableCredit",
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
    "of_table",
    "on_tokens",
    "parts",
    "parts_of",
    "register",
    "sizes",
    "spans_of",
    "split",
    "spread",
    "stands_alone",
]
