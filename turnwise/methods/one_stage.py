"""Methods that are one credit function, with or without a critic, or one objective.

Without a critic, attempts at one task are compared with each other; GiGPO, HGPO, GraphGPO and Pooled TD compare states as well. A critic is
a small head on the policy's hidden states (`learner.value`). In turn-level PPO one action is one response: the critic has one value per
turn, and advantages are computed over turns.

GSPO, GMPO, CISPO and SAPO change how far one batch may move the policy, with GRPO's credit. They differ from PPO's clip only if a batch is
used for more than one optimiser step: `learner.minibatches` or `learner.epochs` above 1. IcePop leaves out tokens on which engine and
learner disagree.

Each method sets its credit (`turnwise/credit/`), and an objective if that is a part of it. The aggregation, the KL term, the discount per
turn and the learning rate are left to the recipe; `method.faithful` takes those of the authors' code, or of the paper where there is no
code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.methods.registry import RAGEN, VERL_AGENT, Brings, KlCoef, RecipeDiscount, ValueClip, kl_loss, method, section

Level = Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio")]
StepWeight = Annotated[float, Help("weight ω of the step credit", low=0)]
FORMER = {"norm": ("recipe", "set credit.norm")}


def _reciprocal(epsilon: float) -> dict[str, Any]:
    return {"objective.clip_low": epsilon / (1 + epsilon), "objective.clip_high": epsilon}


@method(
    "gigpo",
    paper="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    changes="credit",
    costs="nothing: states are hashed",
    evidence="code and paper",
    former=FORMER,
)
def gigpo(*, gamma: RecipeDiscount = None, omega: StepWeight = 1.0) -> dict[str, Any]:
    """Attempts at one task are compared as a whole, and turns from the same state with each other."""
    own = {"credit.name": "gigpo", "credit.gamma": gamma, "credit.omega": omega}
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
    "pooled_td",
    paper="Turnwise: docs/methods/pooled_td.md",
    changes="credit",
    costs="nothing: states are hashed",
    evidence="measured here",
)
def pooled_td(
    *,
    gamma: RecipeDiscount = None,
    prior: Annotated[float, Help("κ: weight of the other attempts' mean return in a state's baseline", low=0)] = 1.0,
) -> dict[str, Any]:
    """A turn is judged by the value of the state that it led to, pooled over the group's attempts."""
    return Brings({"credit.name": "pooled_td", "credit.gamma": gamma, "credit.prior": prior}, {})


@method(
    "grpo",
    paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    changes="credit",
    costs="nothing",
    evidence="code and paper",
    former=FORMER,
)
def grpo() -> dict[str, Any]:
    """Attempts at one task are compared with their mean; every turn of an attempt has the same credit."""
    authors = {"objective.name": "clip", "objective.aggregation": "turn", "credit.norm": "std"}
    return Brings({"credit.name": "grpo"}, authors | kl_loss(0.04))


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
    changes="credit",
    costs="nothing",
    evidence="code and paper",
    former={"objective": ("clip", "set objective.name")},
)
def rloo() -> dict[str, Any]:
    """A return minus the mean of the other attempts at the task; the paper's plain REINFORCE with `method.faithful`."""
    own = {"credit.name": "rloo", "credit.norm": "none"}
    return Brings(own, {"objective.name": "reinforce", "objective.aggregation": "trajectory_sum"})


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


# -- with a critic ---------------------------------------------------------------------------------------------------------------------


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


# -- one objective ---------------------------------------------------------------------------------------------------------------------


@method("gspo", paper="GSPO, arXiv 2507.18071", changes="objective", costs="nothing", evidence="code and paper")
def gspo(
    *,
    level: Level = "turn",
    clip_low: Annotated[float, Help("the span's ratio is clipped below at 1 − this", low=0, high=1)] = 3e-4,
    clip_high: Annotated[float, Help("the span's ratio is clipped above at 1 + this", low=0)] = 4e-4,
) -> dict[str, Any]:
    """One ratio and one clipping decision per turn or trajectory, with the credit of GRPO."""
    clip = {"objective.clip_low": clip_low, "objective.clip_high": clip_high}
    own = {"credit.name": "grpo", "objective.name": "gspo", "objective.level": level, **clip}
    return Brings(own, {"objective.aggregation": level, "objective.kl": "off", "credit.norm": "std"})


@method("gmpo", paper="GMPO, arXiv 2507.20673", changes="objective", costs="nothing", evidence="code and paper")
def gmpo(
    *,
    level: Level = "turn",
    clip: Annotated[float, Help("log-ratios of tokens are clipped at ± this", low=0)] = 0.4,
) -> dict[str, Any]:
    """The geometric mean of the ratios in a turn or trajectory, each clipped before, with the credit of GRPO."""
    bounds = {"objective.clip_low": clip, "objective.clip_high": clip}
    own = {"credit.name": "grpo", "objective.name": "gmpo", "objective.level": level, **bounds}
    return Brings(own, {"objective.aggregation": level, "credit.norm": "std"})


@method("cispo", paper="MiniMax-M1, arXiv 2506.13585", changes="objective", costs="nothing", evidence="code; no lower bound from notes")
def cispo(
    *,
    ratio_low: Annotated[float, Help("lower bound of the weight; 0: no bound", low=0, high=1)] = 0.0,
    ratio_high: Annotated[float, Help("upper bound of the weight", low=1)] = 5.0,
) -> dict[str, Any]:
    """REINFORCE with a bounded importance weight: every token keeps its gradient. The credit is that of GRPO."""
    bounds = {"objective.ratio_low": ratio_low, "objective.ratio_high": ratio_high}
    return Brings({"credit.name": "grpo", "objective.name": "cispo", **bounds}, {"objective.aggregation": "token", "credit.norm": "std"})


@method("sapo", paper="SAPO, arXiv 2511.20347", changes="objective", costs="nothing", evidence="code")
def sapo(
    *,
    tau_positive: Annotated[float, Help("sharpness of the gate if the advantage is positive", low=1e-3)] = 1.0,
    tau_negative: Annotated[float, Help("sharpness otherwise; larger values fade faster", low=1e-3)] = 1.05,
) -> dict[str, Any]:
    """A smooth gate on the ratio instead of a clip, with the credit of GRPO."""
    gates = {"objective.tau_positive": tau_positive, "objective.tau_negative": tau_negative}
    return Brings({"credit.name": "grpo", "objective.name": "sapo", **gates}, {"objective.aggregation": "turn", "credit.norm": "std"})


@method(
    "icepop",
    paper="Ling team 2025, IcePop; masked importance sampling",
    changes="objective",
    costs="one pass for old log-probs, so learner.old_logprobs is the learner's",
    evidence="code and docs of frameworks; bounds vary",
)
def icepop(
    *,
    low: Annotated[float, Help("least weight of a token, or its span, that is learned from", low=0, high=1)] = 0.5,
    high: Annotated[float, Help("largest such weight", low=1)] = 5.0,
    level: Annotated[Literal["token", "turn", "trajectory"], Help("what is masked as a whole")] = "token",
    span: Annotated[Literal["product", "mean"], Help("the weight of a span: product or geometric mean of its tokens' weights")] = "product",
) -> dict[str, Any]:
    """Tokens (or turns, or trajectories) whose probability differs between engine and learner beyond two bounds are left out."""
    options = {"level": level, "span": span, "low": low, "high": high}
    return {"objective.importance": "mask", "objective.importance_options": options, "learner.old_logprobs": "learner"}
