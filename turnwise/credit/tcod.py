"""On-policy distillation: the advantage of a token is how much more likely the teacher finds it than the student who sampled it.

    A(token) = coef · (log p_teacher − log p_student)

Its mean over the student's samples is −coef · KL(student ‖ teacher). No reward is read.
"""

from __future__ import annotations

from typing import Annotated

from turnwise.config.options import Help
from turnwise.credit.registry import PerToken, register
from turnwise.data.rollouts import Rollouts


@register("tcod", paper="TCOD, arXiv 2604.24005", needs=("token.teacher_logprob", "token.logprob"))
def tcod(r: Rollouts, *, coef: Annotated[float, Help("factor of the gap", low=0)] = 1.0) -> PerToken:
    """The teacher's log-prob of each token minus the student's."""
    return PerToken(coef * (r.column("token.teacher_logprob") - r.column("token.logprob")))
