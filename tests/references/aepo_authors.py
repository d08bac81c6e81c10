"""AEPO's rollouts: how many start afresh, and when a rollout branches.

Source: the authors' rollout class `vLLMRolloutWithTools` with `_calculate_initial_rollouts_dynamical` and `generate_sequences`, read as a copy of
RUC-NLPIR/ARPO's later version in a public index that names no repository (54,428 characters). Executed: ARPO's loop with the lines in which AEPO's differ,
and the formula of the initial number (tests/golden/aepo.json: the same rollouts and numbers).

The penalty counts ROUNDS in a row in which the prompt got a new rollout, fresh ones included, not branches; it returns to 0 in a round in which another
prompt of the batch got one and this prompt did not, and stays as it is in a round in which no prompt did.
A branch is made if (u + w · ΔH) · penalty >= p0, where ARPO has u - w · ΔH <= p0.
"""

import math


def initial_number(root, segments, number, beta=0.5):
    """Rollouts from the start. root: entropy of the first answer's beginning; segments: those of the pilot's segments (its first one included)."""
    mean = sum(segments) / len(segments) if segments else root
    share = 1 / (1 + math.exp(-beta * (root - mean)))
    return max(1, min(int(number * share) + 1, number))


def rollouts(segments, number, initial, draws, weight=0.2, probability=0.5, beam=2, penalty=0.05):
    """As in arpo_authors.rollouts, for one prompt alone: without others, a round without a new rollout does not reset the count."""
    made = [(None, 0) for _ in range(min(initial, number))]
    first, active, place, row = {}, list(range(len(made))), [0] * len(made), 0
    while active:
        now, following = {}, []
        for rollout in active:
            value, goes_on = segments(rollout, place[rollout])
            now[rollout] = value
            first.setdefault(rollout, value)
            place[rollout] += 1
            if goes_on:
                following.append(rollout)
        room, new = number - len(made), []
        for rollout in following:
            for _ in range(min(beam - 1, room - len(new))):
                chance = (next(draws) + weight * (now[rollout] - first[rollout])) * max(0.0, 1 - penalty * row)
                if min(max(chance, 0.0), 1.0) >= probability:
                    new.append((rollout, place[rollout]))
        if not following and room > 0:
            new.append((None, 0))
        row += bool(new)
        active = following
        for parent, turn in new:
            made.append((parent, turn))
            place.append(turn)
            active.append(len(made) - 1)
    return made
