"""Fresh attempts from the states of a batch: the Monte-Carlo values that VinePPO's plan makes in a training run."""

from __future__ import annotations

import numpy as np

from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats
from turnwise.lab.problem import Problem
from turnwise.lab.sample import cumulative, pick

ATTEMPTS = 9  # per state, as in VinePPO


def fresh_values(
    problem: Problem, policy: Floats, run: Ints, t: Ints, state: Ints, rng: np.random.Generator, attempts: int = ATTEMPTS
) -> Floats:
    """The mean return of fresh attempts from each state with t turns gone, by the policy of its run, [runs, states, actions]."""
    run, left, here = (np.repeat(column, attempts) for column in (run, problem.horizon - t, state))
    chosen, outcomes = cumulative(policy), cumulative(problem.probability)
    total = np.zeros(len(here))
    playing = np.arange(len(here))
    while len(playing):
        at = here[playing]
        action = pick(rng.random(len(playing)), chosen[run[playing], at])
        outcome = pick(rng.random(len(playing)), outcomes[at, action])
        noise = problem.noise[at, action] * rng.standard_normal(len(playing))
        total[playing] += problem.reward[at, action, outcome] + noise
        here[playing] = problem.next_state[at, action, outcome]
        left[playing] -= 1
        playing = playing[(left[playing] > 0) & ~problem.terminal[here[playing]]]
    return np.asarray(total.reshape(-1, attempts).mean(axis=1))
