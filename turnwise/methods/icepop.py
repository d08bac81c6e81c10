"""IcePop as a method: tokens on which engine and learner disagree are not learned from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import method

Level = Literal["token", "turn", "trajectory"]


@method(
    "icepop",
    paper="Ling team 2025, IcePop; masked importance sampling",
    changes="objective",
    costs="one pass for old log-probs, so learner.old_logprobs is the learner's",
    evidence="code and docs of frameworks; bounds vary",
)
def icepop(
    *,
    low: Annotated[float, Help("least weight of a token, or its span, that is learned from", low=0, high=1)] = 0.5,
    high: Annotated[float, Help("largest such weight", low=1)] = 5.0,
    level: Annotated[Level, Help("what is masked as a whole")] = "token",
    span: Annotated[Literal["product", "mean"], Help("the weight of a span: product or geometric mean of its tokens' weights")] = "product",
) -> dict[str, Any]:
    """Tokens (or turns, or trajectories) whose probability differs between engine and learner beyond two bounds are left out."""
    options = {"level": level, "span": span, "low": low, "high": high}
    return {"objective.importance": "mask", "objective.importance_options": options, "learner.old_logprobs": "learner"}
