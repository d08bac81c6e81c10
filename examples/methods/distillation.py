"""Distillation from a frozen, larger teacher, on the policy's own samples.

The policy samples, the teacher only reads. On each sampled token the difference of the two log-probs says whether the teacher would have
said it more readily; its mean over samples is −KL(policy ‖ teacher). Added to the advantage, it pulls the policy towards the teacher where
the teacher has an opinion, and the reward keeps its say: a student may come to beat its teacher.

Two stages: a signal that asks the teacher, and an objective that reads the signal's column. Neither knows the other; the name of the column
joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from turnwise import methods, objectives
from turnwise.config.options import Help
from turnwise.data.batch import Batch
from turnwise.objectives import TokenLoss, Tokens


# `needs`: without a section [models.teacher] the run is refused before it starts. `gives`: what later stages may need.
@methods.signal("teacher", needs=("model.teacher",), gives=("token.teacher_logprob",))
def teacher(batch: Batch, models: Any) -> Mapping[str, Any]:
    """The log-prob of every sampled token under the model called teacher."""
    return {"token.teacher_logprob": models["teacher"].score(batch)}


@objectives.register("distil", needs=("token.teacher_logprob",))
def distil(
    tokens: Tokens,
    *,
    strength: Annotated[float, Help("weight of the teacher beside the advantage", low=0)] = 1.0,
    bound: Annotated[float, Help("a token's gap counts up to this, either way", low=0)] = 5.0,
) -> TokenLoss:
    """Policy gradient with the advantage plus how much more likely the teacher finds each token."""
    # A declared column arrives in `tokens.extra` under its name without the level, cut and ordered like every other column.
    # `logprob` carries the gradient. Detached, it is a plain number: the gap is a reward, not something to differentiate.
    gap = tokens.extra["teacher_logprob"] - tokens.logprob.detach()
    reward = tokens.advantage + strength * gap.clamp(-bound, bound)
    # One loss per token; the learner weighs and sums them. Metrics are averaged over tokens and logged as learner/teacher_gap.
    return TokenLoss(-reward * tokens.ratio, {"teacher_gap": gap})
