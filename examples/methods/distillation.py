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
class Distil:
    """Clipped policy gradient; the advantage of a token includes how much more likely than usual the teacher finds it."""

    def __init__(
        self,
        *,
        strength: Annotated[float, Help("weight of the teacher's part of the advantage", low=0)] = 1.0,
        bound: Annotated[float, Help("a token's gap counts up to this, either way", low=0)] = 3.0,
        clip: Annotated[float, Help("the ratio counts between 1 - clip and 1 + clip", low=0, high=1)] = 0.2,
    ):
        self.strength, self.bound, self.clip = strength, bound, clip

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Once per mini-batch, in numpy: the gap of every token against the mean gap. Without this baseline, a student that is far from its
        teacher would unlearn all that it says, good or bad. `__call__` sees only a part of the mini-batch and could not know the mean."""
        # A declared column arrives under its name without the level, cut and ordered like every other one.
        gap = columns["teacher_logprob"] - columns["engine_logprob"]
        bounded = gap.clip(-self.bound, self.bound)
        counted = columns["weight"] != 0  # masked tokens have no weight
        return {"gap": gap, "lesson": bounded - bounded[counted].mean() if counted.any() else bounded}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """One loss per token; the learner weighs and sums them. Metrics are averaged over tokens: learner/teacher_gap."""
        reward = tokens.advantage + self.strength * tokens.extra["lesson"]
        clipped = tokens.ratio.clamp(1 - self.clip, 1 + self.clip)
        return TokenLoss(-(tokens.ratio * reward).minimum(clipped * reward), {"teacher_gap": tokens.extra["gap"]})
