"""The rollouts of ARPO and AEPO from the authors' code: which rollout branches, and when.

Sources: RUC-NLPIR/ARPO, commit a95cd0894b53e97595845bd680ed7e85524a2244,
`ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py:generate_sequences`; for AEPO the later version
of the same class, read as a copy in a public index that names no repository (54,428 characters).
Confirmed by executing ARPO's loop from the tool's answer to the next round on scripted segments (tests/golden/arpo.json), and the same
loop with the lines in which AEPO's differ (tests/golden/aepo.json): the same rollouts in the same order.

The measured segment is the one that was just generated, BEFORE the tool's answer after which a branch is made. A branch is a new
rollout: its own first segment, the one after the branch, gives its initial entropy. A prompt that has no active rollout and too few in
all gets one fresh rollout per round. `initial_entropy_dict` is never emptied in the authors' code, so later batches compare with
entropies of the first one: not repeated here.

AEPO's penalty counts ROUNDS in a row in which the prompt got a new rollout, fresh ones included. It returns to 0 in a round in which
another prompt of the batch got one and this prompt did not, and stays as it is in a round in which no prompt did; for one prompt
alone it never returns to 0. `own` is our reading: branches of this prompt alone count, and a round without one begins anew.
"""


def rollouts(segments, number, initial, branches, beam=2, own=False):
    """The rollouts of one prompt, in the order in which they are made: (parent or -1, segments that it takes over).

    segments(rollout, k): (entropy, goes on) of the rollout's k-th segment, shared ones included; goes on: it ended in a tool call.
    branches(rise, row): whether a candidate becomes a branch; asked once per candidate. row: the rounds in a row that the penalty counts.
    """
    made = [(-1, 0) for _ in range(min(initial, number))]
    first, active, place, row = {}, list(range(len(made))), [0] * len(made), 0
    while active:
        now, following = {}, []
        for rollout in active:
            now[rollout], goes_on = segments(rollout, place[rollout])
            first.setdefault(rollout, now[rollout])
            place[rollout] += 1
            if goes_on:
                following.append(rollout)
        room, new = number - len(made), []
        for rollout in following:
            tries = range(min(beam - 1, room - len(new)))
            new += [(rollout, place[rollout]) for _ in tries if branches(now[rollout] - first[rollout], row)]
        if not following and room > 0:
            new.append((-1, 0))
        row = (row + 1 if new and following else 0) if own else row + bool(new)
        active = following
        for parent, taken in new:
            made.append((parent, taken))
            place.append(taken)
            active.append(len(made) - 1)
    return made
