"""HölderPO as a method: the objective `holder` over turns, and GRPO's credit."""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.registry import Brings, method


@method(
    "holder",
    paper="Chen et al. 2026, HölderPO, arXiv 2605.12058",
    changes="objective",
    costs="nothing",
    evidence="code; the range of p for agents from notes",
)
def holder(
    *,
    start: Annotated[float, Help("the power p at the start of the run")] = 1.0,
    end: Annotated[float, Help("the power p at its end")] = -1.0,
) -> dict[str, Any]:
    """The ratio of a turn is the power mean of its tokens' ratios; the power falls during training, from focus to stability."""
    settings: dict[str, Any] = {"credit.name": "grpo", "objective.name": "holder", "objective.start": start, "objective.end": end}
    return Brings(settings, {"objective.aggregation": "turn", "credit.norm": "std"})
