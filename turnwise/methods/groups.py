"""Methods without a critic that are one credit function: attempts at one task are compared with each other.

GiGPO, HGPO and GraphGPO compare states as well. Each method sets its credit (`turnwise/credit/`), and an objective if that is a part of it.
The aggregation, the KL term, the discount per turn and the learning rate are left to the recipe; `method.faithful` takes those of the
authors' code, or of the paper where there is no code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.authors import VERL_AGENT, KlCoef, RecipeDiscount, kl_loss
from turnwise.methods.registry import Brings, method, section

Norm = Annotated[Literal["std", "none", "recipe"], Help("divide by the standard deviation, or not; recipe: as the recipe says")]
StepWeight = Annotated[float, Help("weight ω of the step credit", low=0)]


def _given(word: str) -> str | None:
    return None if word == "recipe" else word


def _reciprocal(epsilon: float) -> dict[str, Any]:
    return {"objective.clip_low": epsilon / (1 + epsilon), "objective.clip_high": epsilon}


@method(
    "gigpo",
    paper="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    changes="credit",
    costs="nothing: states are hashed",
    evidence="code and paper",
)
def gigpo(*, gamma: RecipeDiscount = None, omega: StepWeight = 1.0, norm: Norm = "recipe") -> dict[str, Any]:
    """Attempts at one task are compared as a whole, and turns from the same state with each other."""
    own = {"credit.name": "gigpo", "credit.gamma": gamma, "credit.omega": omega, "credit.norm": _given(norm)}
    return Brings(own, VERL_AGENT | {"credit.gamma": 0.95, "credit.norm": "std", "credit.weighting": "step", "credit.invalid_penalty": 0.1})


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
    gamma: RecipeDiscount = None,
) -> dict[str, Any]:
    """Turns from the same state are compared in groups that share more and more of the recent past."""
    own = {"credit.name": "hgpo", "credit.history": history, "credit.alpha": alpha, "credit.gamma": gamma}
    statistics = {"credit.norm": "std", "credit.weighting": "step", "credit.weights": "code"}
    return Brings(own, VERL_AGENT | statistics | {"credit.gamma": 0.95, "credit.invalid_penalty": 0.1})


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
    own = {"credit.name": "graph_gpo", "credit.gamma": gamma, "credit.scale": scale, "credit.omega": omega}
    return Brings(own, VERL_AGENT | {"credit.norm": "std", "credit.weighting": "step", "credit.invalid_penalty": 0.1})


@method(
    "grpo",
    paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    changes="credit",
    costs="nothing",
    evidence="code and paper",
)
def grpo(*, norm: Norm = "recipe") -> dict[str, Any]:
    """Attempts at one task are compared with their mean; every turn of an attempt has the same credit."""
    own = {"credit.name": "grpo", "credit.norm": _given(norm)}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "turn", "credit.norm": "std"} | kl_loss(0.04))


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
    own = {"credit.name": "dr_grpo", "credit.norm": "none", "objective.aggregation": "turn_sum", "objective.constant": constant}
    return Brings(own, {"objective.name": "clip", "objective.kl": "off"})


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
    own = {"credit.name": "rloo", "credit.norm": "none", "objective.name": objective}
    return Brings(own, {"objective.aggregation": "trajectory_sum"})


@method(
    "loop",
    paper="Chen et al. 2025, Reinforcement Learning for Long-Horizon Interactive LLM Agents, arXiv 2502.01600",
    changes="credit, objective",
    costs="nothing",
    evidence="code and paper",
)
def loop(
    *,
    epsilon: Annotated[float | None, Help("ε: the ratio stays in [1/(1+ε), 1+ε]; none: the recipe's clip", low=0)] = None,
    drop_below: Annotated[float, Help("attempts with a credit of smaller magnitude are dropped", low=0)] = 0.01,
) -> dict[str, Any]:
    """Leave-one-out credit with a clip per token; attempts that differ too little from the others are dropped."""
    own = {"credit.name": "loop", "credit.norm": "none", "credit.drop_below": drop_below, "objective.name": "clip"}
    clip = {} if epsilon is None else _reciprocal(epsilon)
    return Brings(own | clip, {"objective.aggregation": "trajectory", "objective.kl": "off"} | _reciprocal(0.1))


@method(
    "reinforce_pp",
    paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262",
    changes="credit",
    costs="nothing; groups may have one attempt",
    evidence="code and paper",
)
def reinforce_pp(*, gamma: RecipeDiscount = None) -> dict[str, Any]:
    """The return to go, normalised over the whole batch instead of the group."""
    own = {"credit.name": "reinforce_pp", "credit.returns": "to_go", "credit.gamma": gamma, "credit.norm": "std"}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token", "credit.weighting": "token", "credit.gamma": 1.0})


@method(
    "reinforce_pp_baseline",
    paper="Hu et al. 2025, REINFORCE++, arXiv 2501.03262",
    changes="credit",
    costs="nothing",
    evidence="code and paper",
)
def reinforce_pp_baseline() -> dict[str, Any]:
    """A return minus the mean of its group, divided by the standard deviation over the whole batch."""
    own = {"credit.name": "reinforce_pp_baseline", "credit.norm": "std"}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token", "credit.weighting": "token"})


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
    authors = section("credit", norm="std", weighting="step") | section(
        "objective", name="clip", clip_low=0.2, clip_high=0.3, aggregation="token", entropy_coef=0.0
    )
    return Brings({"credit.name": "grpo", "credit.weighting": weighting} | kl_loss(kl_coef), authors | kl_loss(0.001))
