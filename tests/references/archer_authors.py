"""ArCHer from the authors' code: targets, advantage, losses, target network, buffer and warm-up.

Source: YifeiZhou02/ArCHer, commit 7c771a7610cb34e54ba53d69d1fb7337103e5648: `archer/algorithms/archer/trainer.py:critic_loss`, `actor_loss`
and `update`, `archer/models/archer_agent.py:soft_update_target_critic`, `archer/data/utils.py:ReplayBuffer`,
`archer/algorithms/offpolicy_train_loop.py`.
Confirmed by executing `critic_loss`, `actor_loss`, `soft_update_target_critic` and `ReplayBuffer` (tests/golden/archer.json, largest difference 2e-7:
the actor's advantage is cast to float32).

The target network follows after every critic epoch (`epochs` times per iteration), not once per iteration. The policy is updated on states of the
WHOLE buffer with newly sampled responses, from iteration `warmup_iter` (20) on. The critic's loss is a sum of four mean squared errors.
"""

import numpy as np


def critic_targets(reward, done, target_v_next, target_q, gamma=0.9):
    """(what Q learns, what V learns). target_v_next: the target critic's V of the next observation; target_q: its Q of a newly sampled response."""
    return np.asarray(reward) + (1 - np.asarray(done)) * gamma * np.asarray(target_v_next), np.asarray(target_q)


def critic_loss(q1, q2, v1, v2, target1, target2, target_q1, target_q2):
    pairs = ((q1, target1), (q2, target2), (v1, target_q1), (v2, target_q2))
    return sum(float(np.mean((np.asarray(value) - np.asarray(target)) ** 2)) for value, target in pairs)


def advantage(q1, q2, v1, v2):
    return np.minimum(q1, q2) - np.minimum(v1, v2)


def actor_loss(advantages, logprobs, baselines=None):
    """(policy loss, baseline's loss). logprobs: one list per turn of its tokens' log-probs. baselines: the same shape, or None.

    The policy loss is a mean over turns of SUMS over tokens. The baseline's loss is a mean over all positions of the padded batch, padding included.
    """
    total, squares = 0.0, 0.0
    longest = max(len(tokens) for tokens in logprobs)
    for row, tokens in enumerate(logprobs):
        for place, logprob in enumerate(tokens):
            gap = advantages[row] - (0.0 if baselines is None else baselines[row][place])
            total += gap * logprob
            squares += gap**2
    return -total / len(logprobs), 0.0 if baselines is None else squares / (len(logprobs) * longest)


def followed(target, critic, tau=0.1):
    return target * (1 - tau) + critic * tau


class Buffer:
    """The oldest transition is overwritten first; samples are uniform, with replacement."""

    def __init__(self, capacity):
        self.capacity, self.items, self.inserted = capacity, [None] * capacity, 0

    def insert(self, item):
        self.items[self.inserted % self.capacity] = item
        self.inserted += 1

    def stored(self):
        return [item for item in self.items if item is not None]


def updates_policy(iteration, warmup=20):
    """iteration counts from 0."""
    return iteration >= warmup
