"""iStar (Online Process Reward Learning): a process reward model that is trained next to the policy, from outcomes alone.

    r_k   = beta · Σ over the turn's tokens (log p_prm − log p_policy)        the policy that sampled them
    loss  = mean over pairs of −log sigmoid(Σ_k r_k of a success − Σ_k r_k of a failure of the same group)

The model starts as a copy of the policy and is updated after each iteration's credit, so it has not seen the outcomes that it is asked
about. Credit is in `turnwise/credit/istar.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.istar import REWARD, Baseline, StepWeight
from turnwise.data.batch import Batch
from turnwise.methods.registry import Brings, method, model, signal

PAPER = "Liu et al. 2025, Online Process Reward Learning (iStar), arXiv 2509.19199"
SAMPLED = "token.sampling_logprob"
Beta = Annotated[float, Help("scale of the log-ratio", low=0)]


@method(
    "istar",
    paper=PAPER,
    changes="reward, credit",
    costs="a second trained model of the policy's size; one more scoring pass of each model",
    evidence="code, second-hand",
)
def istar(
    *,
    beta: Beta = 0.05,
    weight: StepWeight = 1.0,
    baseline: Baseline = "rloo",
    lr: Annotated[float, Help("learning rate of the process reward model", low=0)] = 1e-6,
) -> dict[str, Any]:
    """A process reward model learns from pairs of successes and failures, and its log-ratio rewards every turn."""
    own = {
        "models.prm.copy_of": "policy",
        "models.prm.trained": True,
        "models.prm.lr": lr,
        "models.prm.clip": 10.0,
        "models.prm.kind": "outcome_pairs",
        "models.prm.options": {"beta": beta},
        "signal": [{"name": "implicit_reward", "beta": beta}],
        "credit.name": "istar",
        "credit.weight": weight,
        "credit.baseline": baseline,
    }
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.kl": "off", "objective.entropy_coef": 0.001}
    return Brings(own, authors)


@signal("implicit_reward", paper=PAPER, needs=("model.prm", "model.policy"), gives=(REWARD, SAMPLED))
def implicit_reward(batch: Batch, models: Any, *, beta: Beta = 0.05) -> Mapping[str, Any]:
    """The implicit reward of every turn, by the model called prm."""
    sampled = models.policy.score(batch)
    ratio = np.asarray(models["prm"].score(batch) - sampled, np.float64)
    sums = np.concatenate([np.zeros(1), np.cumsum(ratio)])[batch.rollouts.token_offsets]
    return {REWARD: beta * np.diff(sums), SAMPLED: sampled}


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
