"""A process reward model that is trained beside the policy, from outcomes alone.

The model is a second language model. Its log-ratio to a frozen reference, summed over a trajectory and scaled by β, is read as the logit of
success and trained by cross-entropy: no turn is ever labelled. Yet the sum has a term per turn, and that term is the turn's reward.

    r(turn) = β Σ over its tokens (log p_model − log p_reference)

Three pieces: the kind of model (its loss), a signal (its rewards as a column) and a credit function (what becomes of them). The run trains
the model once per iteration, after the policy, and keeps its weights and its optimiser in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise import Rollouts, credit, methods
from turnwise.config.options import Help
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import reverse_scan, standardise
from turnwise.data.batch import Batch

Beta = Annotated[float, Help("scale of the log-ratio; the same for the model and the signal", low=0)]


@methods.model("implicit_reward")
class ImplicitReward:
    """Predicts success by the log-ratio of a language model to a frozen one."""

    # Columns that the loss reads. The first is the outcome, the second comes from the signal below.
    needs = ("trajectory.success", "token.start_logprob")

    def __init__(self, *, beta: Beta = 0.1):
        self.beta = beta

    def loss(self, said: Any) -> tuple[Any, Mapping[str, Any]]:
        """Cross-entropy on the outcome. `said` has the model's log-probs with gradient, and columns beside them."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        ratio = said.sum(said.logprob - said["token.start_logprob"], "token", "trajectory")
        logit, outcome = self.beta * ratio, said["trajectory.success"]
        right = ((logit > 0) == (outcome > 0)).float().mean()  # logged as model/NAME/accuracy
        return binary_cross_entropy_with_logits(logit, outcome), {"accuracy": right.detach()}


# `model.reference` keeps a frozen copy of the policy as it starts, also if no KL term uses one.
@methods.signal(
    "process_reward",
    needs=("model.prm", "model.reference"),
    gives=("turn.process_reward", "token.start_logprob"),
)
def process_reward(batch: Batch, models: Any, *, beta: Beta = 0.1) -> Mapping[str, Any]:
    """The implicit reward of every turn, by the model called prm."""
    start = models.reference.score(batch)
    ratio = models["prm"].score(batch) - start
    # Tokens lie one turn after another; `token_offsets` says where each turn begins.
    sums = np.concatenate([np.zeros(1), np.cumsum(ratio, dtype=np.float64)])[batch.rollouts.token_offsets]
    return {"turn.process_reward": beta * np.diff(sums), "token.start_logprob": start}


@credit.register("outcome_and_process", needs=("turn.process_reward", "group.peers"))
def outcome_and_process(
    r: Rollouts,
    *,
    gamma: Annotated[float, Help("discount per turn of process rewards", low=0, high=1)] = 1.0,
    process_weight: Annotated[float, Help("weight of process rewards beside the outcome", low=0)] = 1.0,
) -> NDArray[Any]:
    """The trajectory's return against its group's, plus the process rewards still to come against those of the group's other turns."""
    outcome = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    to_come = reverse_scan(r.column("turn.process_reward"), gamma, r.trajectory)
    # Centred, not divided by the deviation: a model that has learned nothing yet gives rewards near 0, and they should stay there.
    process = standardise(to_come, r.group, len(r.group_labels), "none")
    credit_of_turns: NDArray[Any] = outcome + process_weight * process
    return credit_of_turns
