"""A²TGPO: IGPO's information gain, compared with turns of the same depth only, and a clip range that follows the gain of each turn.

The signal is IGPO's; credit is in `turnwise/credit/a2tgpo.py`, the objective in `turnwise/objectives/a2tgpo.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.authors import TurnDiscount
from turnwise.methods.igpo import Form, Key
from turnwise.methods.registry import Brings, method


@method(
    "a2tgpo",
    paper="A²TGPO, arXiv 2605.06200",
    changes="reward, credit, objective",
    costs="one scoring pass per turn and gold answer",
    evidence="code, second-hand",
)
def a2tgpo(
    *,
    gamma: TurnDiscount = None,
    alpha: Annotated[float, Help("weight of the gains next to the outcome", low=0)] = 0.3,
    beta: Annotated[float, Help("how far a gain widens or narrows the clip range of its turn", low=0, high=1)] = 0.3,
    clip_low: Annotated[float, Help("a turn's ratio is clipped below at 1 − its scale × this", low=0, high=1)] = 3e-3,
    clip_high: Annotated[float, Help("a turn's ratio is clipped above at 1 + its scale × this", low=0)] = 4e-3,
    key: Key = "answers",
    form: Form = "<answer>{}</answer>",
) -> dict[str, Any]:
    """Information gains are compared at the same depth, and a turn with a large gain may move the policy further."""
    own = {
        "signal": [{"name": "information_gain", "key": key, "form": form}],
        "credit.name": "a2tgpo",
        "credit.gamma": gamma,
        "credit.alpha": alpha,
        "credit.beta": beta,
        "objective.name": "a2tgpo",
        "objective.clip_low": clip_low,
        "objective.clip_high": clip_high,
    }
    return Brings(own, {"credit.gamma": 1.0})
