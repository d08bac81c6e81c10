"""HiMAC: the two phases. From notes about the paper (arXiv 2603.00977); no code is public, so nothing could be executed.

Phase A: several blueprints of a task, each carried out once and greedily; the blueprints' tokens get (R - mean) / (deviation + 1e-6) over the task's
blueprints. Phase B: the blueprint with the largest return is carried out several times; action tokens get the same formula over these attempts.
The deviation's kind, group sizes, ties and the numbers of iterations per phase could not be had; ties: the first, one iteration each.
"""

import numpy as np


def advantages(returns, eps=1e-6):
    returns = np.asarray(returns, np.float64)
    return (returns - returns.mean()) / (returns.std(ddof=1) + eps)


def best(returns):
    return int(np.argmax(returns))


def phase(iteration):
    """iteration counts from 0."""
    return "blueprints" if iteration % 2 == 0 else "actions"
