"""iStar (Online Process Reward Learning): a process reward model that is trained next to the policy, from outcomes alone.

    r_k   = beta · Σ over the turn's tokens (log p_prm − log p_policy)        the policy that sampled them
    loss  = mean over pairs of −log sigmoid(Σ_k r_k of a success − Σ_k r_k of a failure of the same group)

The model starts as a copy of the policy and is updated after each iteration's credit, so it has not seen the outcomes that it is asked
about.

Credit adds process rewards, compared with those of the group's other turns, to the outcome:

    A_k = A_episode + weight · A_step
    A_episode   the trajectory's return by the `baseline`, over the trajectories of the group
    A_step      the turn's implicit reward (column turn.implicit_reward) by the same baseline, over all turns of the group

Process rewards are not discounted and not summed: each turn is judged by its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import EPSILON, episode_returns, segment_count, standardise, token_sums, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.registry import Brings, method, model, section, signal

PAPER = "Liu et al. 2025, Online Process Reward Learning (iStar), arXiv 2509.19199"
SAMPLED = "token.sampling_logprob"
Beta = Annotated[float, Help("scale of the log-ratio", low=0)]
REWARD = "turn.implicit_reward"
Baseline = Annotated[
    Literal["rloo", "mean", "mean_std", "batch_std"],
    Help("rloo: the mean of the others; mean: the mean; mean_std: and divided by the group's deviation; batch_std: by the batch's"),
]
StepWeight = Annotated[float, Help("weight of the process rewards next to the outcome", low=0)]


@signal("implicit_reward", paper=PAPER, needs=("model.prm", "model.policy"), gives=(REWARD, SAMPLED))
def implicit_reward(batch: Batch, models: Any, *, beta: Beta = 0.05) -> Mapping[str, Any]:
    """The implicit reward of every turn, by the model called prm."""
    sampled = models.policy.score(batch)
    return {REWARD: beta * token_sums(models["prm"].score(batch) - sampled, batch.rollouts), SAMPLED: sampled}


@model("outcome_pairs")
class OutcomePairs:
    """Ranks successes above failures of the same group by the log-ratio to the policy that sampled them."""

    needs = ("trajectory.success", SAMPLED)

    def __init__(self, *, beta: Beta = 0.05):
        self.beta = beta

    def loss(self, said: Any) -> tuple[Any, Mapping[str, Any]] | None:
        """−log sigmoid x = log(1 + exp(−x)) of the difference x, mean over pairs; None without a pair."""
        score = self.beta * said.sum(said.logprob - said[SAMPLED], "token", "trajectory")
        won, lost = pairs(said["trajectory.success"].cpu().numpy() > 0, said.rows.path("trajectory", "group"))
        if len(won) == 0:
            return None
        gap = score[won] - score[lost]
        return (-gap).logaddexp(gap.new_zeros(())).mean(), {"accuracy": (gap.detach() > 0).float().mean(), "pairs": float(len(won))}


def pairs(success: Any, group: Any) -> tuple[list[int], list[int]]:
    """Each success with one failure of its group; where there are fewer failures, they are used again in turn."""
    won: list[int] = []
    lost: list[int] = []
    for number in np.unique(group):
        good, bad = (np.flatnonzero((group == number) & (success == kind)).tolist() for kind in (True, False))
        if bad:
            won += good
            lost += [bad[i % len(bad)] for i in range(len(good))]
    return won, lost


@credit.register("istar", paper="Liu et al. 2025, Online Process Reward Learning, arXiv 2509.19199", needs=("group.peers", REWARD))
def istar_credit(r: Rollouts, *, weight: StepWeight = 1.0, baseline: Baseline = "rloo") -> Floats:
    """Outcome credit plus the implicit process reward of each turn, both relative to the group."""
    size = len(r.group_labels)
    episode = centred(episode_returns(r), trajectory_groups(r), size, baseline)[r.trajectory]
    return episode + weight * centred(np.asarray(r.column(REWARD), np.float64), r.group, size, baseline)


def centred(values: Floats, group: Ints, size: int, baseline: str) -> Floats:
    """Values relative to those of their group."""
    if baseline == "mean_std":
        return standardise(values, group, size, "std")
    result = standardise(values, group, size, "none")
    if baseline == "rloo":
        count = segment_count(group, size).astype(np.float64)
        return result * (count / np.maximum(count - 1, 1))[group]
    if baseline == "batch_std" and len(result) > 1:
        return np.asarray(result / (np.std(result, ddof=1) + EPSILON))
    return result


@method(
    "istar",
    paper=PAPER,
    changes="reward, credit",
    costs="a second trained model of the policy's size; one more scoring pass of each model",
    evidence="code, second-hand",
    options={istar_credit: "weight baseline"},
)
def istar(
    *,
    beta: Beta = 0.05,
    lr: Annotated[float, Help("learning rate of the process reward model", low=0)] = 1e-6,
) -> dict[str, Any]:
    """A process reward model learns from pairs of successes and failures, and its log-ratio rewards every turn."""
    own = section("models.prm", copy_of="policy", trained=True, lr=lr, clip=10.0, kind="outcome_pairs", options={"beta": beta}) | {
        "credit.name": "istar",
        "signal": [{"name": "implicit_reward", "beta": beta}],
    }
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.kl": "off", "objective.entropy_coef": 0.001}
    return Brings(own, authors)
