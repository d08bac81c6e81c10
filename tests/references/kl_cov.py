"""KL-Cov (C12): the tokens with the largest covariance of log-prob and advantage pay |logp - old|; nothing is clipped."""

from __future__ import annotations

from .clip_cov import covariances
from .forms import Place, Rows, ratio


def chosen(logprobs: Rows, advantages: Rows, fraction: float = 2e-4) -> set[Place]:
    """The max(1, floor(fraction * tokens)) places with the largest covariance. Ties: the earlier place first (the source leaves them open).

    Default fraction 2e-4; the authors' scripts: 0.002 (7B) and 0.0002 (32B). fraction 0: no place.
    """
    cov = covariances(logprobs, advantages)
    places = [(i, t) for i in range(len(cov)) for t in range(len(cov[i]))]
    if fraction == 0 or not places:
        return set()
    number = min(len(places), max(1, int(len(places) * fraction)))
    ordered = sorted(places, key=lambda place: -cov[place[0]][place[1]])
    return set(ordered[:number])


def losses(logprobs: Rows, old: Rows, advantages: Rows, chosen: set[Place], coefficient: float = 1.0) -> tuple[Rows, Rows]:
    """(loss, gradient) per token: -A rho, and for chosen places -A rho + coefficient |logp - old|. Derivative of |x| at 0: 0."""
    loss: Rows = [[] for _ in logprobs]
    grad: Rows = [[] for _ in logprobs]
    for i in range(len(logprobs)):
        for t in range(len(logprobs[i])):
            value = -advantages[i][t] * ratio(logprobs[i][t], old[i][t])
            slope = value
            if (i, t) in chosen:
                moved = logprobs[i][t] - old[i][t]
                value += coefficient * abs(moved)
                slope += coefficient * ((moved > 0) - (moved < 0))
            loss[i].append(value)
            grad[i].append(slope)
    return loss, grad
