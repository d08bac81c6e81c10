"""HölderPO: one ratio per turn or trajectory, the power mean of its tokens' ratios; the power p falls during training. Credit is GRPO's.

    s = ( mean over the span of ρ^p )^(1/p)          p = 1: arithmetic mean, p → 0: geometric mean

A large p concentrates the gradient on the tokens whose ratio has grown most, a small or negative p spreads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import Brings, method
from turnwise.objectives import registry as objectives
from turnwise.objectives.clip import clipped
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

    from turnwise.objectives.tokens import Level, Tokens

GEOMETRIC = 1e-6  # powers closer to 0 than this are its limit, the geometric mean
FORMER = {
    "shape": ("linear", "remove it: the power moves linearly"),
    "exponent": (2.0, "remove it: the power moves linearly"),
    "clip": ("span", "remove it: the power mean is clipped, as in the paper"),
}


def power_at(progress: float, start: float, end: float) -> float:
    """The power p after a share of the schedule, from `start` at 0 to `end` at 1."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)


def power_mean(tokens: Tokens, log_ratio: Tensor, p: float, level: Level) -> Tensor:
    """The power mean of a span's ratios, on each of its tokens; computed relative to the largest term, so that no power overflows."""
    import torch

    if abs(p) < GEOMETRIC:
        return tokens.mean_over(level, log_ratio).exp()
    scaled = p * log_ratio
    top = tokens.max_over(level, scaled)
    mean = tokens.mean_over(level, (scaled - top).exp())
    return ((top + torch.where(tokens.kept, mean, 1.0).log()) / p).exp()


@objectives.register("holder", paper="Chen et al. 2026, HölderPO, arXiv 2605.12058", former=FORMER)
@dataclass(kw_only=True, eq=False)
class Holder:
    """The clipped ratio of a whole turn or trajectory, which is the power mean of its tokens' ratios; the power follows a schedule."""

    start: Annotated[float, Help("the power p at the start of the schedule")] = 1.0
    end: Annotated[float, Help("the power p at its end")] = -1.0
    steps: Annotated[int | None, Help("iterations that the schedule takes; none: the whole run", low=1)] = None
    clip_low: Annotated[float, Help("ratios are clipped below at 1 − this", low=0, high=0.999)] = 0.2
    clip_high: Annotated[float, Help("ratios are clipped above at 1 + this", low=0)] = 0.2
    level: Annotated[Literal["turn", "trajectory"], Help("the span of the mean; micro-batches must contain whole spans")] = "turn"

    def __post_init__(self) -> None:
        self.updates, self.p = 0, self.start

    def begin(self, progress: float) -> None:
        """Before each update: where the schedule is."""
        done = progress if self.steps is None else self.updates / self.steps
        self.p = power_at(done, self.start, self.end)

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.updates += 1

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """One loss per token, the same on all tokens of a span with one advantage."""
        import torch

        from turnwise.objectives.tokens import MAX_LOG_RATIO

        ratio = power_mean(tokens, tokens.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), self.p, self.level)
        loss, metrics = clipped(tokens.advantage, ratio, 1 - self.clip_low, 1 + self.clip_high)
        return TokenLoss(loss, metrics | {"span_ratio": ratio, "holder_p": torch.full_like(ratio, self.p)})

    def state(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.updates = int(state["updates"])


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
