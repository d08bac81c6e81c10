"""Methods that are one objective: GSPO, GMPO, CISPO and SAPO change how far one batch may move the policy, IcePop masks tokens.

The first four were published with GRPO's credit. They differ from PPO's clip only if a batch is used for more than one optimiser step:
`learner.minibatches` or `learner.epochs` above 1. IcePop leaves out tokens on which engine and learner disagree.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import Brings, method

Level = Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio")]


@method("gspo", paper="GSPO, arXiv 2507.18071", changes="objective", costs="nothing", evidence="code and paper")
def gspo(
    *,
    level: Level = "turn",
    clip_low: Annotated[float, Help("the span's ratio is clipped below at 1 − this", low=0, high=1)] = 3e-4,
    clip_high: Annotated[float, Help("the span's ratio is clipped above at 1 + this", low=0)] = 4e-4,
) -> dict[str, Any]:
    """One ratio and one clipping decision per turn or trajectory, with the credit of GRPO."""
    clip = {"objective.clip_low": clip_low, "objective.clip_high": clip_high}
    own = {"credit.name": "grpo", "objective.name": "gspo", "objective.level": level, **clip}
    return Brings(own, {"objective.aggregation": level, "objective.kl": "off", "credit.norm": "std"})


@method("gmpo", paper="GMPO, arXiv 2507.20673", changes="objective", costs="nothing", evidence="code and paper")
def gmpo(
    *,
    level: Level = "turn",
    clip: Annotated[float, Help("log-ratios of tokens are clipped at ± this", low=0)] = 0.4,
) -> dict[str, Any]:
    """The geometric mean of the ratios in a turn or trajectory, each clipped before, with the credit of GRPO."""
    bounds = {"objective.clip_low": clip, "objective.clip_high": clip}
    own = {"credit.name": "grpo", "objective.name": "gmpo", "objective.level": level, **bounds}
    return Brings(own, {"objective.aggregation": level, "credit.norm": "std"})


@method("cispo", paper="MiniMax-M1, arXiv 2506.13585", changes="objective", costs="nothing", evidence="code; no lower bound from notes")
def cispo(
    *,
    ratio_low: Annotated[float, Help("lower bound of the weight; 0: no bound", low=0, high=1)] = 0.0,
    ratio_high: Annotated[float, Help("upper bound of the weight", low=1)] = 5.0,
) -> dict[str, Any]:
    """REINFORCE with a bounded importance weight: every token keeps its gradient. The credit is that of GRPO."""
    bounds = {"objective.ratio_low": ratio_low, "objective.ratio_high": ratio_high}
    return Brings({"credit.name": "grpo", "objective.name": "cispo", **bounds}, {"objective.aggregation": "token", "credit.norm": "std"})


@method("sapo", paper="SAPO, arXiv 2511.20347", changes="objective", costs="nothing", evidence="code")
def sapo(
    *,
    tau_positive: Annotated[float, Help("sharpness of the gate if the advantage is positive", low=1e-3)] = 1.0,
    tau_negative: Annotated[float, Help("sharpness otherwise; larger values fade faster", low=1e-3)] = 1.05,
) -> dict[str, Any]:
    """A smooth gate on the ratio instead of a clip, with the credit of GRPO."""
    gates = {"objective.tau_positive": tau_positive, "objective.tau_negative": tau_negative}
    return Brings({"credit.name": "grpo", "objective.name": "sapo", **gates}, {"objective.aggregation": "turn", "credit.norm": "std"})


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
    level: Annotated[Literal["token", "turn", "trajectory"], Help("what is masked as a whole")] = "token",
    span: Annotated[Literal["product", "mean"], Help("the weight of a span: product or geometric mean of its tokens' weights")] = "product",
) -> dict[str, Any]:
    """Tokens (or turns, or trajectories) whose probability differs between engine and learner beyond two bounds are left out."""
    options = {"level": level, "span": span, "low": low, "high": high}
    return {"objective.importance": "mask", "objective.importance_options": options, "learner.old_logprobs": "learner"}
