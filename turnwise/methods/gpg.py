"""GPG: plain policy gradient with a group mean, scaled up for groups that say nothing, and further batches if too many say nothing.

    A(τ) = α · (R(τ) − mean R) / F        α = B / (B − M),   F = 1, or std R + 1e-6 with norm="std"

B counts the trajectories of the batch, M those in groups whose returns are all equal. Such groups add nothing to the gradient but count in
its mean; α makes up for it. With no group that differs, all credit is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import Norm, Penalty, episode_returns, is_constant, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts, Trajectory, alike
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import Brings, method, plan

Least = Annotated[float, Help("share of groups with different returns below which another batch is collected; 0: never", low=0, high=1)]
Attempts = Annotated[int, Help("batches that are collected at most", low=1)]


@plan("gpg")
@dataclass(kw_only=True, eq=False)
class Resampled(Plan):
    """Collect further batches until enough groups have different returns; fill up with groups of the last batch that do not."""

    least: Least = 0.4
    attempts: Attempts = 20

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        alive: list[list[Trajectory]] = []
        counts = {"resampled": -1.0}
        while True:
            attempts = yield slots.groups(groups)
            dead: list[list[Trajectory]] = []
            for group in by_group(attempts).values():
                (dead if alike([one.reward for one in group]) else alive).append(group)
            counts["resampled"] += 1
            if len(alive) >= self.least * groups or counts["resampled"] + 1 >= self.attempts:
                break
        chosen = (alive + dead)[:groups]
        return Gathered([trajectory for group in chosen for trajectory in group], counts)


@credit.register("gpg", paper="Chu et al. 2025, GPG, arXiv 2504.02546", parts={"episode": None}, needs=("group.peers",))
def gpg_credit(r: Rollouts, *, norm: Norm = "none", invalid_penalty: Penalty = 0.0) -> Floats:
    """The return relative to the group's mean, scaled up by the share of trajectories that are in groups without a difference."""
    credit = episode_credit(r, norm=norm, weighting="trajectory", invalid_penalty=0.0)
    return alpha(r) * credit - invalid_penalty * ~r.valid


def alpha(r: Rollouts) -> float:
    """All trajectories relative to those in groups whose returns differ; 1 if there is none."""
    group = trajectory_groups(r)
    dead = is_constant(episode_returns(r), group, len(r.group_labels))[group]
    alive = int(np.count_nonzero(~dead))
    return len(group) / alive if alive else 1.0


@method(
    "gpg",
    paper="Chu et al. 2025, GPG, arXiv 2504.02546",
    changes="plan, credit, objective",
    costs="up to `attempts` batches of rollouts per iteration while most groups say nothing",
    evidence="code; the scale from the paper",
)
def gpg(*, norm: Norm = "none", least: Least = 0.4, attempts: Attempts = 20) -> dict[str, Any]:
    """Policy gradient without ratio, clip or KL; the credit makes up for groups in which all attempts ended alike."""
    settings: dict[str, Any] = {"credit.name": "gpg", "credit.norm": norm, "objective.name": "reinforce"}
    settings |= {"objective.kl": "off", "learner.epochs": 1, "learner.minibatches": 1}
    settings |= {"plan.name": "gpg", "plan.least": least, "plan.attempts": attempts} if least > 0 else {}
    return Brings(settings, {"objective.aggregation": "token"})
