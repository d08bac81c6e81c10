"""STEP-HRL (B24): offline actor-critic on single steps; the same for the three roles.

Source: TonyStark042/STEP-HRL, commit e6b4971cdf4dfb37e5f09a0283da6876c5116f8d, `alg/step_rl.py:RLstep.update_ac` and `update`,
`alg/step_bc.py:extract_valid_action_probs`, `util/replay_buffer.py:HierarchyDataset`, `config/step_rl.yaml`. Confirmed by executing
`update_ac` with scripted values instead of critics (tests/golden/step_hrl.json, largest difference 5e-16).

Peculiar in the authors' code: the value's target is read from the target critic's Q head at the STATE's last token, not at the
response's; the weights exp(A) are computed and not used; the policy's loss multiplies a vector of advantages (turns) with a column
of log-probs (turns, 1), so as written it is -mean(A) · mean(log-prob) over a micro-batch (stored as actor_loss_as_written), equal
to `losses` for a micro-batch of one turn only; the order in the data is random and all data were collected before (offline), so
there is no buffer rule: each role's rows are repeated (index modulo the role's number of rows) until each role has as many as the
largest. The first `warmup_steps` = 100 updates train the critics only.
"""

from __future__ import annotations


def q_target(reward: float, done: bool, next_value: float, gamma: float = 0.99) -> float:
    """r + (1 - done) gamma V_target(s')."""
    return reward + (0.0 if done else gamma * next_value)


def value_loss(value: float, target_q: float, tau: float = 0.95, low: bool = True) -> tuple[float, float]:
    """(loss, derivative with respect to V): w (V - Q_target)^2, Q_target a constant.

    low (the code): w = tau where V >= Q_target, 1 - tau where V < Q_target, a LOW expectile. low=False: the usual expectile of implicit
    Q-learning, w = tau where V < Q_target.
    """
    gap = value - target_q
    w = tau if (gap >= 0) == low else 1 - tau
    return w * gap * gap, 2 * w * gap


def q_loss(q: float, target: float) -> tuple[float, float]:
    """(loss, derivative): (Q - target)^2."""
    return (q - target) ** 2, 2 * (q - target)


def actor_loss(q: float, value: float, logprob: float) -> tuple[float, float]:
    """(loss, derivative with respect to the log-prob): -(Q - V) logp with a constant advantage. No exponential weight (the code computes
    one
    and does not use it)."""
    return -(q - value) * logprob, -(q - value)
