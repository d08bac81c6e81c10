"""StarPO-S: trajectory filtering, a critic as baseline, no KL and a higher upper clip bound, under one name."""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.authors import RAGEN
from turnwise.methods.group_scores import Mass, Metric, Strategy
from turnwise.methods.registry import Brings, method


@method(
    "starpo_s",
    paper="Wang et al. 2025, RAGEN, arXiv 2504.20073",
    changes="plan, credit, objective",
    costs="groups that are collected and not learned from; a value head",
    evidence="code",
)
def starpo_s(
    *,
    strategy: Annotated[Strategy, Help("which groups are kept: a share of groups, of the total score, or of the best score")] = "top_k",
    keep: Annotated[float, Help("that share", low=0, high=1)] = 0.25,
    mass: Annotated[Mass, Help("with top_p: shares of the scores themselves, or of their softmax")] = "linear",
    metric: Annotated[Metric, Help("a group's score")] = "reward_std",
    zero: Annotated[bool, Help("whether groups with a score of 0 can be kept")] = False,
    soft: Annotated[bool, Help("weight the credit of groups by their spread instead of dropping groups")] = False,
    critic: Annotated[bool, Help("GAE over tokens with a value head; false: GRPO")] = True,
) -> dict[str, Any]:
    """Only the groups whose attempts differ the most are learned from, with a critic, without KL and with a higher upper clip bound."""
    settings: dict[str, Any] = {"objective.name": "clip", "objective.clip_high": 0.28, "objective.kl": "off"}
    authors = dict(RAGEN)
    if critic:
        credit: dict[str, Any] = {"name": "gae", "level": "token", "gamma": 1.0, "lam": 1.0}
        settings |= {"learner.value.level": "token"}
    else:
        credit = {"name": "grpo"}
        authors |= {"credit.norm": "none"}
        del authors["learner.value.clip"]
    if soft:
        base = credit.pop("name")
        credit = {"name": "snr_weighted", "base": base, "options": credit, "norm": "none"}
    else:
        credit |= {"norm": "std"} if critic else {}
        settings |= {"plan.name": "filtered", "plan.strategy": strategy, "plan.keep": keep, "plan.mass": mass}
        settings |= {"plan.metric": metric, "plan.zero": zero}
    return Brings(settings | {f"credit.{key}": value for key, value in credit.items()}, authors)
