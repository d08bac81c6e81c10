"""Methods with a critic: PPO over tokens or turns, and GAE on two levels.

The critic is a small head on the policy's hidden states (`learner.value`). In turn-level PPO one action is one response: the critic has one
value per turn, and advantages are computed over turns.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.authors import RAGEN, RecipeDiscount, ValueClip
from turnwise.methods.registry import Brings, method, section


@method(
    "ppo",
    paper="Schulman et al. 2017, arXiv 1707.06347; GAE: Schulman et al. 2016, arXiv 1506.02438",
    changes="credit, critic",
    costs="a value head; one more forward pass per iteration",
    evidence="code and paper",
)
def ppo(
    *,
    level: Annotated[Literal["token", "turn"], Help("what one step is: a token or a turn")] = "token",
    gamma: Annotated[float, Help("discount per step", low=0, high=1)] = 1.0,
    lam: Annotated[float, Help("λ: 0 trusts the critic, 1 the sampled return", low=0, high=1)] = 1.0,
    value_clip: ValueClip = None,
) -> dict[str, Any]:
    """A learned critic predicts the return, and credit is what a step added to the prediction."""
    credit = {"credit.name": "gae", "credit.level": level, "credit.gamma": gamma, "credit.lam": lam, "credit.norm": "std"}
    own = {**credit, "learner.value.level": level, "learner.value.clip": value_clip, "objective.name": "clip"}
    return Brings(own, {"objective.aggregation": level, "objective.dual_clip": 3.0, "learner.value.clip": 0.5})


@method(
    "bi_level_gae",
    paper="Wang et al. 2025, RAGEN, arXiv 2504.20073",
    changes="credit, critic",
    costs="a value head; one more forward pass per iteration",
    evidence="code; turn ends are stored, not guessed from rewards",
)
def bi_level_gae(
    *,
    gamma: RecipeDiscount = None,
    lam: Annotated[float, Help("λ over turns", low=0, high=1)] = 1.0,
    token_gamma: Annotated[float, Help("discount per token inside a turn", low=0, high=1)] = 1.0,
    token_lam: Annotated[float, Help("λ over the tokens of a turn", low=0, high=1)] = 1.0,
    value_clip: ValueClip = None,
) -> dict[str, Any]:
    """A critic's values give credit over turns first, and then over the tokens inside each turn."""
    over_turns = {"credit.name": "bi_level_gae", "credit.gamma": gamma, "credit.lam": lam, "credit.norm": "std"}
    over_tokens = {"credit.token_gamma": token_gamma, "credit.token_lam": token_lam}
    critic = {"learner.value.level": "token", "learner.value.clip": value_clip}
    return Brings({**over_turns, **over_tokens, **critic, "objective.name": "clip"}, RAGEN | {"credit.gamma": 0.95})


@method(
    "turn_ppo",
    paper="PPO over turns: Agent-R1, arXiv 2511.14460; StepPO, arXiv 2604.18401",
    changes="credit, critic",
    costs="a value head, read once per turn",
    evidence="code of Agent-R1 and StepPO",
)
def turn_ppo(
    *,
    gamma: RecipeDiscount = None,
    lam: Annotated[float, Help("λ: 0 trusts the critic, 1 the sampled return", low=0, high=1)] = 1.0,
    value_clip: ValueClip = None,
    ratio: Annotated[Literal["token", "turn"], Help("PPO's clip per token, or one clipped ratio per turn")] = "token",
) -> dict[str, Any]:
    """PPO in which one step is a whole turn: a critic that values turns, GAE over turns, whitened over turns."""
    settings: dict[str, Any] = section("credit", name="gae", level="turn", gamma=gamma, lam=lam, norm="std")
    settings |= {"learner.value.level": "turn", "learner.value.clip": value_clip}
    objective = {"objective.name": "clip"} if ratio == "token" else {"objective.name": "gspo", "objective.level": "turn"}
    return Brings(settings | objective, {"credit.gamma": 1.0, "learner.value.clip": 0.5})
