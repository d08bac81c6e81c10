"""IGPO and A²TGPO: a turn is rewarded by how much it raises the policy's own probability of the gold answer.

    p_k     = exp(mean log-prob of the gold answer's tokens)     after the prompt of turn k and the words that open an answer
    gain_k  = p_{k+1} − p_k, or log p_{k+1} − log p_k             the last turn has none: the outcome judges it

A task may have several gold answers; p is that of the likeliest.

Credit judges a turn by what it found out, and the last turn by the outcome:

    r_k = gain_k                 what turn k adds to the (log-)probability of the gold answer (column turn.information_gain)
    r_K = R                      the last turn: the outcome, the trajectory's return
    r~  = (r − mean r) / (s + 1e-6)      over the group: all of its turn rewards ("joint"), or gains and outcomes apart ("separate")
    A_k = r~_k + γ · A_next              next: the next turn with a reward; a turn without one has A_next itself

s is sqrt(var + 1e-8) of the population. A turn whose gain is not known (NaN: its task has no gold answer) has no reward and is in no mean.
This is the formula of the authors' rewrite of February 2026.

A²TGPO: IGPO's information gain, compared with turns of the same depth only, and a clip range that follows the gain of each turn.

    z_k = (gain_k − mean) / (population std + 1e-6)      over the turns with index k of the group
    D_k = Σ_{j=k}^{n} γ^{j−k} z_j / √(n − k + 1)         n: the trajectory's last turn with a gain
    A_k = α · D_k + O                                    O: the outcome as in GRPO; the last turn has no gain, and gets O alone
    c_k = 1 + β · (2 σ(z_k) − 1)                         column turn.clip_scale; 1 without a gain

The objective has one ratio per turn, clipped to [1 − c_k · clip_low, 1 + c_k · clip_high]. The signal is IGPO's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import EPSILON, TurnDiscount, deviation, episode_returns, last_turns, pair, reverse_scan, standardise
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.data.tasks import Task
from turnwise.methods.registry import Brings, RecipeDiscount, kl_loss, method, signal
from turnwise.methods.spans import Spans
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

A2TGPO = "A²TGPO, arXiv 2605.06200"
PAPER = "Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967"
Key = Annotated[str, Help("key of the tasks' data that holds the gold answer, or a list of them")]
Form = Annotated[str, Help("how the agent says an answer, with {} in place of it")]
Gain = Annotated[Literal["prob", "log_prob"], Help("what a turn adds to: the answer's probability, or its mean log-prob")]
GAIN = "turn.information_gain"
Pooling = Annotated[Literal["joint", "separate"], Help("one z-score over gains and outcomes of a group, or one for each")]
GainWeight = Annotated[float, Help("weight of the gains next to the outcome", low=0)]
ClipShift = Annotated[float, Help("how far a gain widens or narrows the clip range of its turn", low=0, high=1)]
TurnClipLow = Annotated[float, Help("a turn's ratio is clipped below at 1 − its scale × this", low=0, high=1)]
TurnClipHigh = Annotated[float, Help("a turn's ratio is clipped above at 1 + its scale × this", low=0)]
FORMER = {
    "version": ("rewrite", "remove it: the formula of the authors' rewrite is the only one"),
    "zeros": ("count", "remove it: a gain of exactly 0 counts"),
}


@signal("information_gain", paper=PAPER, needs=("task.{key}", "model.policy"), gives=("turn.gold_probability", GAIN))
def information_gain(
    batch: Batch, models: Any, *, key: Key = "answers", form: Form = "<answer>{}</answer>", gain: Gain = "prob"
) -> Mapping[str, Floats]:
    """How much each turn raised the policy's probability of the gold answer; NaN for the last turn and for tasks without an answer."""
    spans = Spans(models.policy.tokenizer)
    opening = spans.encode(form.partition("{}")[0]) if form.partition("{}")[0] else []
    asked: dict[tuple[Any, ...], int] = {}  # the first prompt is the same for a whole group: each pair is scored once
    wanted: list[tuple[int, int]] = []  # row, number of the pair
    for k in range(len(batch.trajectories)):
        answers = [spans.encode(text) for text in gold_answers(batch.task(k), key)]
        for row, turn in zip(batch.rows(k), batch.trajectories[k].turns, strict=True):
            pairs = [(tuple(turn.prompt_ids), tuple(answer)) for answer in answers if answer]
            wanted += [(row, asked.setdefault(pair, len(asked))) for pair in pairs]
    prompts, answers = [list(prompt) for prompt, _ in asked], [list(answer) for _, answer in asked]
    scores = models.policy.logprobs(prompts, [opening + answer for answer in answers]) if asked else []
    means = [float(np.mean(score[len(opening) :])) for score in scores]

    best = np.full(len(batch), -np.inf)
    for row, number in wanted:
        best[row] = max(best[row], means[number])
    known = np.where(np.isinf(best), np.nan, np.exp(best))
    before = known if gain == "prob" else np.where(np.isinf(best), np.nan, best)
    after = np.append(before[1:], np.nan)
    after[batch.first_row[1:] - 1] = np.nan
    return {"turn.gold_probability": known, GAIN: after - before}


def gold_answers(task: Task, key: str) -> list[str]:
    """The gold answers of a task: none, one text or number, or a list of them."""
    items = task.data.get(key)
    listed = items if isinstance(items, Sequence) and not isinstance(items, str) else [] if items is None else [items]
    return [str(answer) for answer in listed]


@credit.register("igpo", paper=PAPER, needs=("group.peers", GAIN), former=FORMER)
def igpo_credit(r: Rollouts, *, gamma: TurnDiscount = 1.0, normalise: Pooling = "joint") -> Floats:
    """Discounted sum of normalised turn rewards: information gains, and at the end the outcome."""
    last, gain = last_turns(r), np.asarray(r.column(GAIN), np.float64)
    counted = last | ~np.isnan(gain)
    reward = np.where(last, episode_returns(r)[r.trajectory], gain)
    scaled = np.zeros(len(r))
    for chosen in [counted] if normalise == "joint" else [last, counted & ~last]:
        values, group, size = reward[chosen], r.group[chosen], len(r.group_labels)
        spread = np.sqrt(deviation(values, group, size, ddof=0) ** 2 + 1e-8) + EPSILON
        scaled[chosen] = standardise(values, group, size, "none") / spread[group]
    return reverse_scan(scaled, np.where(counted, gamma, 1.0), r.trajectory)


@method(
    "igpo",
    paper=PAPER,
    changes="reward, credit",
    costs="one scoring pass per turn and gold answer",
    evidence="code; sum from notes",
    options={igpo_credit: "normalise", information_gain: "key form gain"},
    former=FORMER | {"curriculum": (False, "remove it: gains and outcomes weigh the same in the whole run")},
)
def igpo(*, gamma: RecipeDiscount = None) -> dict[str, Any]:
    """A turn is rewarded by how much it raises the policy's probability of the gold answer."""
    own = {"credit.name": "igpo", "credit.gamma": gamma, "signal": [{"name": "information_gain"}]}
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.001, "credit.gamma": 1.0}
    return Brings(own, authors | kl_loss(0.001))


@credit.register("a2tgpo", paper=A2TGPO, needs=("group.peers", GAIN), gives=("turn.clip_scale",))
def a2tgpo_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    alpha: GainWeight = 0.3,
    beta: ClipShift = 0.3,
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


@objectives.register("a2tgpo", paper=A2TGPO, needs=("turn.clip_scale",))
def a2tgpo_loss(
    tokens: Tokens,
    *,
    clip_low: TurnClipLow = 3e-3,
    clip_high: TurnClipHigh = 4e-3,
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
    paper=A2TGPO,
    changes="reward, credit, objective",
    costs="one scoring pass per turn and gold answer",
    evidence="code, second-hand",
    options={a2tgpo_credit: "alpha beta", a2tgpo_loss: "clip_low clip_high", information_gain: "key form"},
)
def a2tgpo(
    *,
    gamma: RecipeDiscount = None,
) -> dict[str, Any]:
    """Information gains are compared at the same depth, and a turn with a large gain may move the policy further."""
    credit = {"credit.name": "a2tgpo", "credit.gamma": gamma}
    return Brings({**credit, "objective.name": "a2tgpo", "signal": [{"name": "information_gain"}]}, {"credit.gamma": 1.0})
