"""Flow-GRPO (AgentFlow): the final outcome, compared within the group, is the credit of every planner turn.

Every turn is a sample. The authors' code takes mean and deviation over all turns of the group, so long attempts weigh more; the paper takes
them over the attempts. `statistics` chooses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.authors import KlCoef, kl_loss
from turnwise.methods.registry import Brings, method


@method(
    "flow_grpo",
    paper="Li et al. 2025, AgentFlow, arXiv 2510.05592",
    changes="credit",
    costs="none beyond GRPO; the reference's pass for the KL term",
    evidence="code",
)
def flow_grpo(
    *,
    statistics: Annotated[
        Literal["turns", "trajectories", "recipe"],
        Help("mean and deviation over turns (code), over trajectories (paper), or as the recipe says"),
    ] = "recipe",
    kl_coef: KlCoef = None,
) -> dict[str, Any]:
    """The outcome of an attempt, relative to its group, goes to every turn of the planner."""
    weighting = {"turns": "step", "trajectories": "trajectory"}.get(statistics)
    authors = {
        "credit.norm": "std",
        "credit.weighting": "step",
        "objective.name": "clip",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.3,
        "objective.aggregation": "token",
        "objective.entropy_coef": 0.0,
    }
    return Brings({"credit.name": "grpo", "credit.weighting": weighting} | kl_loss(kl_coef), authors | kl_loss(0.001))
