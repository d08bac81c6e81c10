"""Methods without a critic: attempts at one task are compared with each other. GiGPO, HGPO and GraphGPO compare states as well.

Each sets its credit, its objective and what has equal weight in the loss. The learning rate, the KL term and the size of a batch are left
to the recipe.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import method

Gamma = Annotated[float, Help("discount per turn", low=0, high=1)]
Norm = Annotated[Literal["std", "none"], Help("divide by the standard deviation, or not")]
StepWeight = Annotated[float, Help("weight ω of the step credit", low=0)]


@method(
    "gigpo",
    paper="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    changes="credit",
    costs="nothing: states are hashed",
    evidence="code and paper",
)
def gigpo(*, gamma: Gamma = 0.95, omega: StepWeight = 1.0, norm: Norm = "std") -> dict[str, Any]:
    """Attempts at one task are compared as a whole, and turns from the same state with each other."""
    own = {"credit.gamma": gamma, "credit.omega": omega, "credit.norm": norm}
    return {"credit.name": "gigpo", **own, **_clip("turn")}


@method(
    "hgpo",
    paper="He et al. 2026, Hierarchy-of-Groups Policy Optimization, arXiv 2602.22817",
    changes="credit",
    costs="nothing: states are hashed",
    evidence="code and paper; level weights differ between them",
)
def hgpo(
    *,
    history: Annotated[int, Help("K: up to how many earlier states must also match", low=0)] = 2,
    alpha: Annotated[float, Help("how fast the weight grows with the number of matching states", low=0)] = 1.0,
    gamma: Gamma = 0.95,
) -> dict[str, Any]:
    """Turns from the same state are compared in groups that share more and more of the recent past."""
    return {"credit.name": "hgpo", "credit.history": history, "credit.alpha": alpha, "credit.gamma": gamma, **_clip("turn")}


@method(
    "graph_gpo",
    paper="Graph-based Group Policy Optimization, 2026, arXiv 2605.26684",
    changes="credit",
    costs="nothing: a breadth-first search per group",
    evidence="paper",
)
def graph_gpo(
    *,
    gamma: Annotated[float, Help("discount per unit of graph distance to success", low=0, high=1)] = 0.1,
    scale: Annotated[float, Help("score of a turn that leads to success itself", low=0)] = 10.0,
    omega: StepWeight = 1.0,
) -> dict[str, Any]:
    """A turn is scored by the distance to success in the graph of states that the group has visited."""
    return {"credit.name": "graph_gpo", "credit.gamma": gamma, "credit.scale": scale, "credit.omega": omega, **_clip("turn")}


@method(
    "grpo",
    paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    changes="credit",
    costs="nothing",
    evidence="code and paper",
)
def grpo(*, norm: Norm = "std") -> dict[str, Any]:
    """Attempts at one task are compared with their mean; every turn of an attempt has the same credit."""
    return {"credit.name": "grpo", "credit.norm": norm, **_clip("turn")}


@method(
    "dr_grpo",
    paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783",
    changes="credit, aggregation",
    costs="nothing",
    evidence="code and paper",
)
def dr_grpo(
    *, constant: Annotated[float, Help("divisor of the summed token losses: the longest response", low=1)] = 512.0
) -> dict[str, Any]:
    """GRPO without its two divisions: by the standard deviation of returns, and by the length of a response."""
    return {"credit.name": "dr_grpo", **_clip("turn_sum"), "objective.constant": constant}


@method(
    "rloo",
    paper="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740",
    changes="credit, objective",
    costs="nothing",
    evidence="code and paper",
)
def rloo(
    *, objective: Annotated[Literal["reinforce", "clip"], Help("the paper's REINFORCE, or PPO's clip")] = "reinforce"
) -> dict[str, Any]:
    """A return minus the mean of the other attempts at the task, with plain REINFORCE."""
    return {"credit.name": "rloo", "objective.name": objective, "objective.aggregation": "trajectory_sum"}


@method(
    "loop",
    paper="Chen et al. 2025, Reinforcement Learning for Long-Horizon Interactive LLM Agents, arXiv 2502.01600",
    changes="credit, objective",
    costs="nothing",
    evidence="code and paper",
)
def loop(
    *,
    epsilon: Annotated[float, Help("ε: the ratio stays in [1/(1+ε), 1+ε]", low=0)] = 0.1,
    drop_below: Annotated[float, Help("attempts with a credit of smaller magnitude are dropped", low=0)] = 0.01,
) -> dict[str, Any]:
    """Leave-one-out credit with a narrow clip per token; attempts that differ too little from the others are dropped."""
    clip = {"objective.clip_low": epsilon / (1 + epsilon), "objective.clip_high": epsilon}
    return {"credit.name": "loop", "credit.drop_below": drop_below, **_clip("trajectory"), **clip}


@method(
    "reinforce_pp",
    paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262",
    changes="credit",
    costs="nothing; groups may have one attempt",
    evidence="code and paper",
)
def reinforce_pp(*, gamma: Gamma = 1.0) -> dict[str, Any]:
    """The return to go, normalised over the whole batch instead of the group."""
    return {"credit.name": "reinforce_pp", "credit.returns": "to_go", "credit.gamma": gamma, **_clip("token")}


@method(
    "reinforce_pp_baseline",
    paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262",
    changes="credit",
    costs="nothing",
    evidence="code and paper",
)
def reinforce_pp_baseline() -> dict[str, Any]:
    """A return minus the mean of its group, divided by the standard deviation over the whole batch."""
    return {"credit.name": "reinforce_pp_baseline", **_clip("token")}


def _clip(aggregation: str) -> dict[str, Any]:
    return {"objective.name": "clip", "objective.aggregation": aggregation}
