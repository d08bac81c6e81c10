"""ResRL from the authors' code, with an exact decomposition instead of their randomised one.

Source: 1229095296/ResRL, commit 58d7d5dd7531e3900f523269b717f510a66ebd82, `verl/workers/actor/dp_actor.py`:
`_compute_svd_token_weights` and the loop of `update_policy` that applies the weights.
Confirmed by executing `_compute_svd_token_weights` (tests/golden/resrl.json; float32, largest difference 4e-7 of a weight; with their 4 power
iterations `torch.pca_lowrank` is random, and weights differ by up to 3e-4, so the stored cases use 40).

What the authors' code does in corner cases: weight 1 for every token of a failure if the group has no success, no failure, or fewer than
4 tokens in its successes; (least + 1) / 2 if the quantiles are closer than 1e-5; the rank is at most the number of positive tokens - 1.
The mean that is subtracted is that of the successes, for the failures too. A sample is a success if its score is above 0.
The authors take groups inside a micro-batch, and at most 4096 positive tokens, drawn at random.
"""

import numpy as np

LAYER_NORM_EPS = 1e-5


def layer_normed(hidden):
    hidden = np.asarray(hidden, np.float64)
    centred = hidden - hidden.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS)


def residuals(positive, negative, rank):
    """Squared length per dimension of each negative token's hidden state outside the subspace of the positive ones; None: not defined.

    positive: hidden states of all tokens of the group's successes (tokens, size). negative: those of its failures.
    """
    if len(positive) < 4 or len(negative) == 0:
        return None
    positive, negative = layer_normed(positive), layer_normed(negative)
    mean = positive.mean(0)
    rank = min(rank, len(positive) - 1, positive.shape[1])
    directions = np.linalg.svd(positive - mean, full_matrices=False)[2][:rank]
    rest = (negative - mean) - (negative - mean) @ directions.T @ directions
    return (rest**2).sum(1) / positive.shape[1]


def weights(residual, least=0.1, low=0.2, high=0.8):
    """The weight of each token of a group's failures. residual: of all these tokens together."""
    residual = np.asarray(residual, np.float64)
    lower, upper = np.quantile(residual, low), np.quantile(residual, high)
    if max(upper - lower, 1e-6) < 1e-5:
        return np.full(len(residual), (least + 1) / 2)
    return least + (1 - least) * np.clip((residual - lower) / (upper - lower), 0, 1)
