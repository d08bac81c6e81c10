"""T²PO: when a turn is drawn again (from the authors' code), and the uncertainty (from notes about the paper).

Source of `drawn`: WillDreamer/T2PO, commit bb92004af21e805a5e2b403a961977413f68b314,
`agent_system/multi_turn_rollout/rollout_loop.py:T2PO_multi_turn_loop`; eta is 0.3 there and `algorithm.TDS.max_try` is 2.
Confirmed by executing that part of the loop (tests/golden/t2po.json, the same draws).
`turn_level_score` itself is read there but computed nowhere in the repository, and the thought's intervention is only a number of tokens
(`num_think_tokens`): `uncertainty` and `turn_score` follow third-party notes on arXiv 2605.02178 and could not be confirmed.

In the authors' code the first turn is never drawn again; a score exactly equal to the one before is kept (change > 0 is required);
the comparison is with the score of the turn that was PLAYED before; the last draw is kept, not the best.
"""

import numpy as np


def drawn(scores, eta=0.3, tries=2):
    """Number of draws of each turn. scores: for each turn the scripted scores of successive draws (at least 1 + tries)."""
    result, before = [], None
    for stream in scores:
        used = 1
        if before is not None:
            while used <= tries and 0 < abs(stream[used - 1] - before) < eta:
                used += 1
        before = stream[used - 1]
        result.append(used)
    return result


def scaled(values):
    low, high = min(values), max(values)
    return [0.0 if high == low else (value - low) / (high - low) for value in values]


def uncertainty(entropies, tops, mix=0.5):
    """M of each token. tops: for each token the log-probs of its j most likely tokens; C = -mean of them."""
    confidence = [-sum(row) / len(row) for row in tops]
    pairs = zip(scaled(list(entropies)), scaled(confidence), strict=True)
    return [mix * entropy + (1 - mix) * (1 - sure) for entropy, sure in pairs]


def turn_score(measure):
    """Geometric mean of M over the turn's tokens; 0 if one of them is 0."""
    measure = np.asarray(measure, np.float64)
    return float(np.exp(np.mean(np.log(measure)))) if (measure > 0).all() else 0.0
