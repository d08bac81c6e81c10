"""VinePPO (B23): the value of an intermediate state is the mean return of fresh rollouts from it.

Source: McGill-NLP/VinePPO, commit efe7228469f21bad8cc8d4e44a3f688ed8cc6aac,
`src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py`: `_create_value_estimation_requests`,
`_compute_mc_value`, `_compute_step_advantages`. Confirmed by executing the first (up to its data sets) and the last
(tests/golden/vineppo.json, largest difference 0).

A state is a prefix of the text, so equal prefixes share one estimate, in all trajectories. The state after the last step is not
valued: it is 0. With `last` (max_step_for_value_estimation), states after it are not valued; their value is the reward that
follows. The question is always valued. Rewards of the steps are 0 but for the last. gamma is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forms import mean


def state_values(rewards: Sequence[float], returns: Sequence[Sequence[float]], gamma: float = 1.0) -> list[float]:
    """V(s_0), ..., V(s_K) of one trajectory with K turns: the mean of returns[k], the returns of fresh rollouts (9) from before turn k.

    V(s_K) = 0 (the end). Empty returns[k] only in the tail: from the end backwards V_k = r_k + gamma V_{k+1} until the first estimate.
    """
    k = len(rewards)
    values = [mean(r) if r else None for r in returns] + [0.0]
    for i in range(k - 1, -1, -1):
        if values[i] is not None:
            break
        values[i] = rewards[i] + gamma * (values[i + 1] or 0.0)
    if any(v is None for v in values):
        raise ValueError("a state before an estimated one has no rollouts")
    return [v for v in values if v is not None]


def advantages(rewards: Sequence[float], returns: Sequence[Sequence[float]], gamma: float = 1.0) -> list[float]:
    """A_k = r_k + gamma V(s_{k+1}) - V(s_k); the same for all tokens of the turn; no whitening. PPO clip 0.2 follows."""
    v = state_values(rewards, returns, gamma)
    return [rewards[k] + gamma * v[k + 1] - v[k] for k in range(len(rewards))]


def valued(steps, last=None):
    """Numbers of the states that get fresh rollouts: state k is the one before step k. steps: number of steps."""
    highest = steps - 2 if last is None else min(steps - 2, last - 1)
    return [0] + [step + 1 for step in range(steps) if step <= highest]
