"""DAPO: four switches under one name, and the signal that makes overlong responses cost reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats
from turnwise.methods.registry import Brings, method, signal
from turnwise.util.errors import TurnwiseError

Limit = Annotated[int | None, Help("the longest response in tokens; none: engine.max_tokens of the recipe", low=1)]
Buffer = Annotated[int | None, Help("the penalty starts this many tokens below the limit; none: a fifth of it", low=1)]
Factor = Annotated[float, Help("the penalty of a response that reaches the limit", low=0)]


@method(
    "dapo",
    paper="Yu et al. 2025, DAPO, arXiv 2503.14476",
    changes="plan, reward, objective",
    costs="further groups instead of those in which all attempts end alike",
    evidence="code and paper",
)
def dapo(
    *,
    clip_higher: Annotated[bool, Help("upper clip bound 0.28 instead of 0.2")] = True,
    dynamic: Annotated[bool, Help("replace groups in which all attempts end alike")] = True,
    token_mean: Annotated[bool, Help("every token has the same weight in the loss")] = True,
    overlong: Annotated[bool, Help("long responses cost reward")] = True,
    limit: Limit = None,
    buffer: Buffer = None,
    factor: Factor = 1.0,
) -> dict[str, Any]:
    """GRPO with a higher upper clip bound, dynamic sampling, a mean over tokens and a price for overlong responses."""
    settings: dict[str, Any] = {"credit.name": "grpo", "objective.name": "clip"}
    if clip_higher:
        settings["objective.clip_high"] = 0.28
    if token_mean:
        settings["objective.aggregation"] = "token"
    if dynamic:
        settings |= {"plan.name": "dynamic", "plan.refills": 9}
    if overlong:
        given = {"limit": limit, "buffer": buffer}
        settings["signal"] = [{"name": "overlong", "factor": factor} | {name: value for name, value in given.items() if value is not None}]
    return Brings(settings, {"objective.clip_low": 0.2, "objective.kl": "off", "objective.entropy_coef": 0.0, "credit.norm": "std"})


@signal("overlong", gives=("turn.reward", "turn.overlong"))
def overlong(
    batch: Batch,
    models: Any,
    *,
    limit: Limit = None,
    buffer: Buffer = None,
    factor: Factor = 1.0,
    level: Annotated[Literal["turn", "trajectory"], Help("whose tokens are counted: each response's, or all of a trajectory's")] = "turn",
) -> dict[str, Any]:
    """Subtract from the reward of a turn that is close to the length limit, up to `factor` at the limit."""
    limit = limit or (int(getattr(models, "longest", 0)) if level == "turn" else 0)
    if not limit:
        raise TurnwiseError("signal 'overlong': the longest response is not known here: set limit, in tokens")
    buffer = buffer or max(limit // 5, 1)
    if buffer > limit:
        raise TurnwiseError(f"signal 'overlong': the buffer of {buffer} tokens is longer than the limit of {limit}; set a smaller buffer")
    rollouts = batch.rollouts
    tokens = np.asarray(rollouts.need("tokens", "the signal overlong"), np.float64)
    price = np.zeros(len(rollouts))
    if level == "turn":
        price = penalty(tokens, limit, buffer, factor)
    else:  # on the last turn of each trajectory
        size = len(rollouts.trajectory_labels)
        last = np.zeros(size, np.int64)
        np.maximum.at(last, rollouts.trajectory, rollouts.t)
        ends = rollouts.t == last[rollouts.trajectory]
        price[ends] = penalty(np.bincount(rollouts.trajectory, tokens, size).astype(np.float64), limit, buffer, factor)[
            rollouts.trajectory[ends]
        ]
    return {"turn.reward": rollouts.reward + price, "turn.overlong": price}


def penalty(length: Floats, limit: int, buffer: int, factor: float) -> Floats:
    """min(0, −(length − (limit − buffer)) / buffer · factor)."""
    values: Floats = np.minimum(0.0, -(length - (limit - buffer)) / buffer * factor)
    return values
