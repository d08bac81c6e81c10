"""Turn-level PPO: one action is one response, the critic has one value per turn, and advantages are computed over turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.authors import TurnDiscount, ValueClip
from turnwise.methods.registry import Brings, method


@method(
    "turn_ppo",
    paper="PPO over turns: Agent-R1, arXiv 2511.14460; StepPO, arXiv 2604.18401",
    changes="credit, critic",
    costs="a value head, read once per turn",
    evidence="code of Agent-R1 and StepPO",
)
def turn_ppo(
    *,
    gamma: TurnDiscount = None,
    lam: Annotated[float, Help("λ: 0 trusts the critic, 1 the sampled return", low=0, high=1)] = 1.0,
    value_clip: ValueClip = None,
    ratio: Annotated[Literal["token", "turn"], Help("PPO's clip per token, or one clipped ratio per turn")] = "token",
) -> dict[str, Any]:
    """PPO in which one step is a whole turn: a critic that values turns, GAE over turns, whitened over turns."""
    settings: dict[str, Any] = {
        "credit.name": "gae",
        "credit.level": "turn",
        "credit.gamma": gamma,
        "credit.lam": lam,
        "credit.norm": "std",
    }
    settings |= {"learner.value.level": "turn", "learner.value.clip": value_clip}
    objective = {"objective.name": "clip"} if ratio == "token" else {"objective.name": "gspo", "objective.level": "turn"}
    return Brings(settings | objective, {"credit.gamma": 1.0, "learner.value.clip": 0.5})
