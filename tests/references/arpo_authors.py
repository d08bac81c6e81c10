"""ARPO's rollouts from the authors' code: when a rollout branches.

Source: RUC-NLPIR/ARPO, commit a95cd0894b53e97595845bd680ed7e85524a2244,
`ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py:generate_sequences` and `_calc_entropy`.
Confirmed by executing the part of the loop from the tool's answer to the next round, and `_calc_entropy`, on scripted segments
(tests/golden/arpo.json: the same rollouts in the same order).

The measured segment is the one that was just generated, BEFORE the tool's answer after which the branch is made. A branch is a new rollout: its own first
segment (the one after the branch) gives its initial entropy. Of the entropies, those of all top tokens of all first 20 tokens are summed, then
divided by the log of the vocabulary's size. A prompt that has no active rollout and too few in all gets one fresh rollout per round.
`initial_entropy_dict` is never emptied in the authors' code, so later batches compare with entropies of the first one: not repeated here.
"""

import math


def entropy(tops, vocabulary, first=20):
    """tops: for each token of the segment the log-probs of its most likely tokens."""
    return sum(-math.exp(value) * value for row in tops[:first] for value in row) / math.log(vocabulary)


def rollouts(segments, number, initial, draws, weight=0.2, probability=0.5, beam=2):
    """The rollouts of one prompt, in the order in which they are made: (parent or None, round after which it branched).

    segments(rollout, round): (entropy, goes on) of what the rollout generates in this round, where round counts the tool answers before.
    goes on: it ended in a tool call. draws: an iterator of uniform numbers, one per candidate branch.
    """
    made = [(None, 0) for _ in range(min(initial, number))]
    first, active = {}, list(range(len(made)))
    place = [0] * len(made)
    while active:
        now, following = {}, []
        for rollout in active:
            value, goes_on = segments(rollout, place[rollout])
            now[rollout] = value
            first.setdefault(rollout, value)
            place[rollout] += 1
            if goes_on:
                following.append(rollout)
        room = number - len(made)
        new = []
        for rollout in following:
            for _ in range(min(beam - 1, room - len(new))):
                chance = next(draws) - weight * (now[rollout] - first[rollout])
                if min(max(chance, 0.0), 1.0) <= probability:
                    new.append((rollout, place[rollout]))
        if not following and room > 0:
            new.append((None, 0))
        active = following
        for parent, turn in new:
            made.append((parent, turn))
            place.append(turn)
            active.append(len(made) - 1)
    return made
