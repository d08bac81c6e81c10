"""StarPO-S: trajectory filtering, a critic as baseline, no KL and a higher upper clip bound, under one name.

The credit function `snr_weighted` is the soft form of its filter, for any other algorithm:

    A' = A · σ_g / max σ        σ_g: sample standard deviation of the returns of group g

A group that nearly always ends the same way has a small signal and the noise of any other group; its weight is small. Divided by σ_g in the
base algorithm already (norm="std"), the weight would only undo that, so the default is norm="none".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.registry import algorithms, assign
from turnwise.credit.segments import Norm, Penalty, deviation, episode_returns, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.authors import RAGEN
from turnwise.methods.filtered import Mass, Metric, Strategy
from turnwise.methods.registry import Brings, method
from turnwise.util.errors import TurnwiseError


@credit.register("snr_weighted", paper="Wang et al. 2025, RAGEN, arXiv 2504.20073", needs=("group.peers",))
def snr_weighted_credit(
    r: Rollouts,
    *,
    base: Annotated[str, Help("the credit algorithm that is weighted")] = "grpo",
    options: Annotated[dict[str, Any] | None, Help("further options of it")] = None,
    norm: Norm = "none",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """Credit of another algorithm times the spread of the group's returns, relative to the largest spread of the batch."""
    known = algorithms[base].options
    own = {"norm": norm, "invalid_penalty": invalid_penalty}
    result = assign(base, r, **({name: value for name, value in own.items() if name in known} | (options or {})))
    weight = group_weights(r)
    of_turns = weight[r.group]
    values = result.values * (of_turns if result.level == "turn" else np.repeat(of_turns, np.diff(r.token_offsets)))
    columns = {**result.columns, f"{result.level}.advantage": values, "group.snr": weight}
    return columns if result.targets is None else columns | {f"{result.level}.target": result.targets}


def group_weights(r: Rollouts) -> Floats:
    """σ_g / max σ, by group; 0 for all where no group has a spread."""
    spread = deviation(episode_returns(r), trajectory_groups(r), len(r.group_labels))
    largest = spread.max(initial=0.0)
    return spread / largest if largest > 0 else spread


def credit_needs(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the weighted algorithm needs."""
    if options["base"] == "snr_weighted":
        raise TurnwiseError("credit algorithm 'snr_weighted' cannot weight itself: set credit.base to another one")
    return algorithms[options["base"]].needed(options.get("options") or {})


snr_weighted_credit.needs_of = credit_needs  # type: ignore[attr-defined]


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
