"""SERL: the policy itself, told afterwards what an action led to, says which tokens of the action mattered.

    D_t = log π_T(token | prompt with the feedback) − log π(token)      π_T: a copy of the policy, renewed every few iterations
    w_t = clip(exp(sign(A) · D_t), 1 − bound, 1 + bound)
    A'  = A · ((1 − λ) + λ · w_t)       on tokens of the action; A on the others
    λ   = share · max(0, 1 − iteration / horizon)

The sign of the credit is the task's; hindsight only distributes it. The signal asks the copy, the objective weights. The feedback of a
turn is the next observation, inserted into the prompt after the observation that the turn answered.

The objective adds a pull towards hindsight, the forward KL divergence KL(hindsight ‖ policy) on tokens of the action, times λ. Its gradient
is estimated from the sampled tokens alone: −r · ∇ log π, with r the probability under hindsight over the one that the token was drawn with,
at most `most`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.options import Help
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.methods.registry import Brings, kl_loss, method, signal
from turnwise.methods.spans import Spans
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "SERL, arXiv 2605.19447"
Share = Annotated[float, Help("λ in the first iteration", low=0, high=1)]
Horizon = Annotated[int, Help("iterations until λ is 0", low=1)]
Every = Annotated[int, Help("iterations after which the copy of the policy is renewed", low=1)]


@signal("hindsight", paper=PAPER, needs=("model.{model}",), gives=("token.hindsight_logprob", "token.action", "turn.hindsight_share"))
def hindsight(
    batch: Batch,
    models: Any,
    *,
    model: Annotated[str, Help("the copy of the policy, of a section [models.NAME]")] = "hindsight",
    share: Share = 0.5,
    horizon: Horizon = 50,
    every: Every = 10,
    form: Annotated[str, Help("how feedback is said in the prompt, with {} in place of it")] = "\nAfter this turn: {}\n",
) -> Mapping[str, NDArray[Any]]:
    """The log-prob of every token under a copy of the policy that has seen the feedback, and which tokens are the action's."""
    done = int(batch.column("turn.version").max()) if batch.has("turn.version") else 0  # the same after a resume
    teacher = models[model]
    if done > 0 and done % every == 0:
        teacher.follow(models.policy)
    spans = Spans(teacher.tokenizer)
    prompts, responses, action = [], [], []
    for trajectory in batch.trajectories:
        for turn, feedback in zip(trajectory.turns, feedback_of(trajectory), strict=True):
            shown = spans.find(turn.prompt_ids, turn.observation)
            place = len(turn.prompt_ids) if shown is None else shown.stop
            said = spans.encode(form.replace("{}", feedback)) if feedback else []
            prompts.append([*turn.prompt_ids[:place], *said, *turn.prompt_ids[place:]])
            responses.append(list(turn.response_ids))
            own = spans.find(turn.response_ids, turn.action) or range(0)
            action += [place in own for place in range(len(turn.response_ids))]
    scores = teacher.logprobs(prompts, responses)
    left = share * max(0.0, 1.0 - done / horizon)
    return {
        "token.hindsight_logprob": np.concatenate(scores),
        "token.action": np.asarray(action, np.bool_),
        "turn.hindsight_share": np.full(len(batch), left),
    }


def feedback_of(trajectory: Trajectory) -> list[str]:
    """What each turn led to: the next observation; after the last turn the state that ended the attempt, if that is a text."""
    last = trajectory.final_anchor if isinstance(trajectory.final_anchor, str) else ""
    return [turn.observation for turn in trajectory.turns[1:]] + [last]


@objectives.register("serl", paper="SERL, arXiv 2605.19447", needs=("token.hindsight_logprob", "token.action", "turn.hindsight_share"))
def serl_loss(
    tokens: Tokens,
    *,
    bound: Annotated[float, Help("weights are between 1 − this and 1 + this", low=0, high=1)] = 0.2,
    distil: Annotated[float, Help("weight of the distillation term, times λ", low=0)] = 1.0,
    most: Annotated[float, Help("largest importance ratio of the distillation term", low=0)] = 2.0,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 0.2,
) -> TokenLoss:
    """Clipped policy gradient; on tokens of an action, credit is weighted by what a copy of the policy says that knows the feedback."""
    import torch

    from turnwise.objectives.clip import clip
    from turnwise.objectives.tokens import ratio_of

    hindsight, share = tokens.extra["hindsight_logprob"], tokens.extra["hindsight_share"]
    action = tokens.extra["action"].bool()
    gap = hindsight - tokens.logprob.detach()
    weight = ratio_of(tokens.advantage.sign() * gap).clamp(1 - bound, 1 + bound)
    advantage = tokens.advantage * torch.where(action, (1 - share) + share * weight, 1.0)
    loss, clipped = clip(replace(tokens, advantage=advantage), clip_low=clip_low, clip_high=clip_high)
    metrics = {**clipped, "hindsight_weight": torch.where(action, weight, 1.0), "hindsight_gap": torch.where(action, gap, 0.0)}
    if distil > 0:
        drawn = ratio_of(hindsight - tokens.old_logprob).clamp(max=most)
        loss = loss - torch.where(action, distil * share * drawn * tokens.logprob, 0.0)
    return TokenLoss(loss, metrics)


@method(
    "serl",
    paper=PAPER,
    changes="objective",
    costs="one scoring pass per turn; a copy of the policy",
    evidence="notes; schedule code",
    options={hindsight: "share horizon every", serl_loss: "bound distil"},
)
def serl() -> dict[str, Any]:
    """Credit of an action is distributed over its tokens by a copy of the policy that has seen the feedback."""
    own = {"objective.name": "serl", "models.hindsight.copy_of": "policy", "signal": [{"name": "hindsight"}], "credit.name": "grpo"}
    return Brings(own, {"objective.aggregation": "token", "objective.entropy_coef": 0.001, "credit.norm": "std"} | kl_loss(0.0))
