"""A²TGPO: IGPO's information gain, compared with turns of the same depth only, and a clip range that follows the gain of each turn.

    z_k = (gain_k − mean) / (population std + 1e-6)      over the turns with index k of the group
    D_k = Σ_{j=k}^{n} γ^{j−k} z_j / √(n − k + 1)         n: the trajectory's last turn with a gain
    A_k = α · D_k + O                                    O: the outcome as in GRPO; the last turn has no gain, and gets O alone
    c_k = 1 + β · (2 σ(z_k) − 1)                         column turn.clip_scale; 1 without a gain

The objective has one ratio per turn, clipped to [1 − c_k · clip_low, 1 + c_k · clip_high]. The signal is IGPO's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import TurnDiscount, pair, reverse_scan, standardise
from turnwise.data.rollouts import Rollouts
from turnwise.methods.authors import RecipeDiscount
from turnwise.methods.igpo import GAIN, Form, Key, last_turns
from turnwise.methods.registry import Brings, method, section
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens


@credit.register("a2tgpo", paper="A²TGPO, arXiv 2605.06200", needs=("group.peers", GAIN), gives=("turn.clip_scale",))
def a2tgpo_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    alpha: Annotated[float, Help("weight of the gains next to the outcome", low=0)] = 0.3,
    beta: Annotated[float, Help("how far a gain widens or narrows the clip range of its turn", low=0, high=1)] = 0.3,
) -> dict[str, Any]:
    """Information gains compared with those of the same depth, summed and rescaled, plus the outcome; gives each turn its clip range."""
    gain = np.asarray(r.column(GAIN), np.float64)
    gained = ~last_turns(r) & ~np.isnan(gain)
    z = np.zeros(len(r))
    depth, depths = pair(r.group[gained], r.t[gained])
    z[gained] = standardise(gain[gained], depth, depths, "std", ddof=0)
    left = reverse_scan(gained.astype(np.float64), 1.0, r.trajectory)  # turns with a gain from here on
    ahead = reverse_scan(z, gamma, r.trajectory) / np.sqrt(np.maximum(left, 1.0))
    outcome = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    return {"turn.advantage": alpha * ahead + outcome, "turn.clip_scale": 1.0 + beta * np.tanh(z / 2)}  # 2σ(z) − 1 = tanh(z / 2)


@objectives.register("a2tgpo", paper="A²TGPO, arXiv 2605.06200", needs=("turn.clip_scale",))
def a2tgpo_loss(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("a turn's ratio is clipped below at 1 − its scale × this", low=0, high=1)] = 3e-3,
    clip_high: Annotated[float, Help("a turn's ratio is clipped above at 1 + its scale × this", low=0)] = 4e-3,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """One ratio and one clipping decision for each turn, within the clip range that credit gave to the turn."""
    import torch

    from turnwise.objectives.gspo import MAX_LOG_SPAN_RATIO
    from turnwise.objectives.tokens import ratio_of

    advantage, scale = tokens.advantage, tokens.extra["clip_scale"]
    span = tokens.mean_over(level, tokens.log_ratio.detach())
    ratio = ratio_of(tokens.logprob - tokens.logprob.detach() + span, high=MAX_LOG_SPAN_RATIO)
    low, high = 1 - scale * clip_low, 1 + scale * clip_high
    loss = torch.maximum(-advantage * ratio, -advantage * torch.minimum(torch.maximum(ratio, low), high))
    metrics = {
        "clip_low": (advantage < 0) & (ratio < low),
        "clip_high": (advantage > 0) & (ratio > high),
        "span_ratio": ratio,
        "clip_scale": scale,
    }
    return TokenLoss(loss, metrics)


@method(
    "a2tgpo",
    paper="A²TGPO, arXiv 2605.06200",
    changes="reward, credit, objective",
    costs="one scoring pass per turn and gold answer",
    evidence="code, second-hand",
)
def a2tgpo(
    *,
    gamma: RecipeDiscount = None,
    alpha: Annotated[float, Help("weight of the gains next to the outcome", low=0)] = 0.3,
    beta: Annotated[float, Help("how far a gain widens or narrows the clip range of its turn", low=0, high=1)] = 0.3,
    clip_low: Annotated[float, Help("a turn's ratio is clipped below at 1 − its scale × this", low=0, high=1)] = 3e-3,
    clip_high: Annotated[float, Help("a turn's ratio is clipped above at 1 + its scale × this", low=0)] = 4e-3,
    key: Key = "answers",
    form: Form = "<answer>{}</answer>",
) -> dict[str, Any]:
    """Information gains are compared at the same depth, and a turn with a large gain may move the policy further."""
    own = (
        section("credit", name="a2tgpo", gamma=gamma, alpha=alpha, beta=beta)
        | section("objective", name="a2tgpo", clip_low=clip_low, clip_high=clip_high)
        | {"signal": [{"name": "information_gain", "key": key, "form": form}]}
    )
    return Brings(own, {"credit.gamma": 1.0})
