"""T2PO (B2): stop a thought whose uncertainty no longer changes; draw a turn again that does not move the uncertainty.

Source of `draws_again`: WillDreamer/T2PO, commit bb92004af21e805a5e2b403a961977413f68b314,
`agent_system/multi_turn_rollout/rollout_loop.py:T2PO_multi_turn_loop`; eta is 0.3 there and `algorithm.TDS.max_try` is 2.
Confirmed by executing that part of the loop (tests/golden/t2po.json, the same draws).
`turn_level_score` itself is read there but computed nowhere in the repository, and the thought's intervention is only a number of
tokens (`num_think_tokens`): the other functions follow third-party notes on arXiv 2605.02178 and could not be confirmed.

In the authors' code the first turn is never drawn again; a score exactly equal to the one before is kept (change > 0 is required);
the comparison is with the score of the turn that was PLAYED before; the last draw is kept, not the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from references.forms import mean


def confidence(top_logprobs: Sequence[float]) -> float:
    """C_t = -(1/j) sum of the j largest log-probs of a token (large: peaked). j is whatever is given; no default is published."""
    return -mean(top_logprobs)


def _scaled(xs: Sequence[float]) -> list[float]:
    low, high = min(xs), max(xs)
    return [(x - low) / (high - low) if high > low else 0.0 for x in xs]


def uncertainties(entropies: Sequence[float], confidences: Sequence[float], a: float = 0.5, running: bool = False) -> list[float]:
    """M_t = a Hn_t + (1 - a)(1 - Cn_t), Hn and Cn scaled to [0, 1] by minimum and maximum over the turn; equal values: scaled to 0.

    running: minimum and maximum over the tokens up to t only (what is known while decoding). a is not published; 0.5 is ours.
    """
    result = []
    for t in range(len(entropies)):
        end = t + 1 if running else len(entropies)
        h, c = _scaled(entropies[:end])[t], _scaled(confidences[:end])[t]
        result.append(a * h + (1 - a) * (1 - c))
    return result


def stop_at(m: Sequence[float], minimum: int, window: int, eps: float) -> int | None:
    """The number of thought tokens after which the thought is closed: the smallest n >= minimum, n > window, for which the mean of the last
    `window` changes |M_t - M_{t-1}| among the first n tokens is below eps; None: never. It closes a thought at most once."""
    for n in range(max(minimum, window + 1), len(m) + 1):
        if mean([abs(m[t] - m[t - 1]) for t in range(n - window, n)]) < eps:
            return n
    return None


def turn_uncertainty(m: Sequence[float], floor: float = 1e-8) -> float:
    """Phi_k: the geometric mean of M_t over the turn, values below `floor` raised to it."""
    return math.exp(mean([math.log(max(x, floor)) for x in m]))
