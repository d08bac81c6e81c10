"""Exact values by dynamic programming: what the lab compares credit with.

Time counts: with t turns gone of a horizon of H the same state is worth less when fewer turns are left, so values are tables over
(t, state, action). The truth is undiscounted: the expected sum of rewards is what training is for; a discount is a means of an algorithm.

    Q_t(s, a) = E[ reward + V_{t+1}(s') ]      V_t(s) = Σ_a π(a|s) Q_t(s, a)      V_H = 0, and 0 in terminal states
    A_t(s, a) = Q_t(s, a) − V_t(s)             the true advantage
"""

from __future__ import annotations

import numpy as np

from turnwise.credit.segments import segment_sum
from turnwise.data.rollouts import Floats
from turnwise.lab.problems import Problem
from turnwise.util.errors import TurnwiseError


def backup(problem: Problem, value: Floats, discount: float = 1.0) -> Floats:
    """E[reward + value of the next state] of each action; `value` is [..., states], the result [..., states, actions]."""
    gained: Floats = (problem.probability * (problem.reward + discount * value[..., problem.next_state])).sum(axis=-1)
    gained[..., problem.terminal, :] = 0.0
    return gained


def action_values(problem: Problem, policy: Floats) -> Floats:
    """Q as [horizon, ..., states, actions] under policies π, [..., states, actions]."""
    q = np.zeros((problem.horizon, *policy.shape))
    value = np.zeros(policy.shape[:-1])
    for t in reversed(range(problem.horizon)):
        q[t] = backup(problem, value)
        value = (policy * q[t]).sum(axis=-1)
    return q


def state_values(q: Floats, policy: Floats) -> Floats:
    """V as [horizon, ..., states] from Q."""
    return np.asarray((policy * q).sum(axis=-1))


def advantages(problem: Problem, policy: Floats) -> Floats:
    """The true advantages, [horizon, states, actions]. Rounding errors are removed, so that an action that does not matter has exactly
    0."""
    q = action_values(problem, policy)
    advantage = q - state_values(q, policy)[..., None]
    advantage[np.abs(advantage) < 1e-12] = 0.0
    return advantage


def expected_return(problem: Problem, policy: Floats) -> Floats:
    """The exact expected return of policies [..., states, actions]: one number each."""
    value = np.zeros(policy.shape[:-1])
    for _ in range(problem.horizon):
        value = (policy * backup(problem, value)).sum(axis=-1)
    return np.asarray(value @ problem.start)


def best_return(problem: Problem) -> float:
    """The expected return of the best policy there is (it may look at the clock; the trained ones do not)."""
    value = np.zeros(problem.states)
    for _ in range(problem.horizon):
        value = backup(problem, value).max(axis=-1)
    return float(value @ problem.start)


def occupancy(problem: Problem, policy: Floats) -> Floats:
    """The probability to take a turn from each state at each time, [horizon, states]. Terminal states take no turns."""
    here: Floats = problem.start.copy()
    share = np.zeros((problem.horizon, problem.states))
    for t in range(problem.horizon):
        share[t] = np.where(problem.terminal, 0.0, here)
        flow = share[t][:, None, None] * policy[:, :, None] * problem.probability
        here = segment_sum(flow.ravel(), problem.next_state.ravel(), problem.states)
    return share


def exact_gradient(problem: Problem, policy: Floats) -> Floats:
    """The gradient of the expected return by the logits of a softmax policy: Σ_t P(s at t) π(a|s) A_t(s, a), [states, actions]."""
    advantage = advantages(problem, policy)
    return np.asarray(np.einsum("ts,tsa->sa", occupancy(problem, policy), advantage) * policy)


def skilled_policy(problem: Problem, skill: float, patience: float = 0.95, sweeps: int = 400) -> Floats:
    """With probability `skill` the best action (ties shared), otherwise any: the half-trained agent whose credit is measured.

    Best refers to a discount of `patience`: with turns to spare every action still leads to success, and only a discount prefers the
    short path."""
    if not 0 <= skill <= 1:
        raise TurnwiseError(f"skill is a probability, in [0, 1], not {skill}")
    value = np.zeros(problem.states)
    q = backup(problem, value, patience)
    for _ in range(sweeps):
        q = backup(problem, value, patience)
        value = q.max(axis=-1)
    best = q >= value[:, None] - 1e-9
    return np.asarray(skill * best / best.sum(axis=1, keepdims=True) + (1 - skill) / problem.actions)
