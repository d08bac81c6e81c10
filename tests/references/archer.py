"""ArCHer (A21): double critics per utterance, a policy gradient per token.

Source: YifeiZhou02/ArCHer, commit 7c771a7610cb34e54ba53d69d1fb7337103e5648: `archer/algorithms/archer/trainer.py:critic_loss`,
`actor_loss` and `update`, `archer/models/archer_agent.py:soft_update_target_critic`, `archer/data/utils.py:ReplayBuffer`,
`archer/algorithms/offpolicy_train_loop.py`. Confirmed by executing `critic_loss`, `actor_loss`, `soft_update_target_critic` and
`ReplayBuffer` (tests/golden/archer.json, largest difference 2e-7: the actor's advantage is cast to float32).

The target network follows after every critic epoch (`epochs` times per iteration), not once per iteration. The policy is updated on
states of the WHOLE buffer with newly sampled responses, from iteration `warmup_iter` (20) on. The critic's loss is a sum of four
mean squared errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .forms import mean


def q_targets(reward: float, done: bool, next_values: tuple[float, float], gamma: float = 0.9) -> tuple[float, float]:
    """For Q_1 and Q_2: r + (1 - done) gamma V_target,i(o')."""
    return tuple(reward + (0.0 if done else gamma * v) for v in next_values)  # type: ignore[return-value]


def v_targets(target_q: tuple[float, float]) -> tuple[float, float]:
    """For V_1 and V_2: Q_target,i(o, a), a drawn afresh from the policy."""
    return target_q


def critic_loss(q: Sequence[float], v: Sequence[float], q_target: Sequence[float], v_target: Sequence[float]) -> float:
    """Of one transition: the sum of the four squared errors (the batch loss is the mean of each over transitions, then their sum)."""
    return math.fsum((x - y) ** 2 for x, y in zip([*q, *v], [*q_target, *v_target], strict=True))


def advantage(q: tuple[float, float], v: tuple[float, float]) -> float:
    """min_i Q_i(o, a) - min_i V_i(o)."""
    return min(q) - min(v)


def actor_loss(
    logprobs: Sequence[Sequence[float]], advantages: Sequence[float], baselines: Sequence[Sequence[float]] | None = None
) -> float:
    """-mean over utterances of sum_t logp_t (A - b_t); b_t = 0 without baselines. The derivative for a token is -(A - b_t)/utterances."""
    rows = []
    for i, row in enumerate(logprobs):
        b = baselines[i] if baselines is not None else [0.0] * len(row)
        rows.append(math.fsum(x * (advantages[i] - y) for x, y in zip(row, b, strict=True)))
    return -mean(rows)
