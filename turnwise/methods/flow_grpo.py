"""Flow-GRPO (AgentFlow): the final outcome, compared within the group, is the credit of every planner turn.

Every turn is a sample. The authors' code takes mean and deviation over all turns of the group, so long attempts weigh more; the paper takes
them over the attempts. `statistics` chooses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import method


@method(
    "flow_grpo",
    paper="Li et al. 2025, AgentFlow, arXiv 2510.05592",
    changes="credit, objective",
    costs="none beyond GRPO; the reference's pass for the KL term",
    evidence="code",
)
def flow_grpo(
    *,
    statistics: Annotated[Literal["turns", "trajectories"], Help("mean and deviation over turns (code) or trajectories (paper)")] = "turns",
    kl_coef: Annotated[float, Help("weight of the KL term", low=0)] = 0.001,
) -> dict[str, Any]:
    """The outcome of an attempt, relative to its group, goes to every turn of the planner."""
    return {
        "credit.name": "grpo",
        "credit.weighting": "step" if statistics == "turns" else "trajectory",
        "objective.name": "clip",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.3,
        "objective.kl": "loss",
        "objective.kl_coef": kl_coef,
        "objective.aggregation": "turn",
    }
