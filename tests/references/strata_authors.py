"""StraTA (arXiv 2605.06642): advantages of strategies and of actions.

Source: a digest of reading notes that quote the paper's formulas; neither the paper's text nor the repository
(xxyQwQ/StraTA) could be had, so nothing was executed.

- Per task N strategies, per strategy M attempts.  R(z) is the mean of the best ceil(delta * M) returns of its attempts,
  delta = 0.5.  A(z) = GRPO over the N strategies, for the tokens of the strategy.
- R(a_t) = R(attempt) - kappa * [turn t was flagged], kappa = 0.1.  A(a_t) = GRPO among the attempts of the same strategy, for
  the tokens of the action.
- The notes do not say: how delta * M is rounded, which std, which epsilon, and whether the mean and std of the second
  comparison are over turns or attempts.
"""

import math

import numpy as np


def _grpo(value, members, std):
    if len(set(members)) <= 1:
        return 0.0
    centred = value - np.mean(members)
    return centred / (np.std(members, ddof=1) + 1e-6) if std else centred


def strategy_return(returns, fraction=0.5):
    """Mean of the best fraction of the returns, at least one."""
    best = sorted(returns, reverse=True)[: max(1, math.ceil(fraction * len(returns)))]
    return sum(best) / len(best)


def strategy_advantages(returns, task, strategy, fraction=0.5, std=True):
    """{(task, strategy): A(z)}.  returns, task, strategy: per attempt."""
    value = {}
    for key in set(zip(task, strategy, strict=True)):
        value[key] = strategy_return([returns[i] for i in range(len(returns)) if (task[i], strategy[i]) == key], fraction)
    return {key: _grpo(value[key], [v for other, v in value.items() if other[0] == key[0]], std) for key in value}


def action_advantages(returns, flagged, task, strategy, trajectory, kappa=0.1, std=True):
    """A(a_t) per turn, statistics over the turns of the strategy's attempts.  All arguments per turn."""
    score = [returns[i] - kappa * bool(flagged[i]) for i in range(len(returns))]
    return np.array(
        [
            _grpo(score[i], [score[j] for j in range(len(score)) if (task[j], strategy[j]) == (task[i], strategy[i])], std)
            for i in range(len(score))
        ]
    )
