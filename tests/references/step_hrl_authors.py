"""STEP-HRL from the authors' code: what the critics learn, and the policy's loss.

Source: TonyStark042/STEP-HRL, commit e6b4971cdf4dfb37e5f09a0283da6876c5116f8d, `alg/step_rl.py:RLstep.update_ac` and `update`,
`alg/step_bc.py:extract_valid_action_probs`, `util/replay_buffer.py:HierarchyDataset`, `config/step_rl.yaml`.
Confirmed by executing `update_ac` with scripted values instead of critics (tests/golden/step_hrl.json, largest difference 5e-16).

Peculiar in the authors' code: the value's target is read from the target critic's Q head at the STATE's last token, not at the response's;
the weights exp(A) are computed and not used; the policy's loss multiplies a vector of advantages (turns) with a column of log-probs (turns, 1), so as
written it is -mean(A) · mean(log-prob) over a micro-batch (stored as actor_loss_as_written), equal to `losses` for a micro-batch of one turn only; the order in the data is random and all data were collected before (offline), so there is no
buffer rule: each role's rows are repeated (index modulo the role's number of rows) until each role has as many as the largest.
The first `warmup_steps` = 100 updates train the critics only.
"""

import numpy as np


def q_target(reward, done, next_value, gamma=0.99):
    """next_value: the target critic's V at the end of the next prompt of the same role."""
    return reward + (1 - done) * gamma * next_value


def losses(q, v, q_state, target, mean_logprob, tau=0.95, advantage=True):
    """(value loss, Q loss, policy loss) of the turns of ONE role; all arrays have one entry per turn.

    q, v: the critic's values. q_state: the target critic's Q, which V learns. target: of Q. mean_logprob: mean log-prob of the response's tokens.
    tau: weight of turns whose V is at least its target; 1 - tau otherwise, so V is an expectile at 1 - tau.
    """
    q, v = np.asarray(q, np.float64), np.asarray(v, np.float64)
    gap = v - np.asarray(q_state)
    weight = np.where(gap < 0, 1 - tau, tau)
    actor = -np.mean(((q - v) if advantage else q) * np.asarray(mean_logprob))
    return float(np.mean(weight * gap**2)), float(np.mean((q - np.asarray(target)) ** 2)), float(actor)
