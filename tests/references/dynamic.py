"""Dynamic sampling: DAPO's recipe in verl, and verl-agent's loop for agents.

Sources: `recipe/dapo/dapo_ray_trainer.py` as carried by 1229095296/ResRL, commit 58d7d5dd7531e3900f523269b717f510a66ebd82 (verl's
own file, unchanged); `agent_system/multi_turn_rollout/utils.py:filter_group_data` and `rollout_loop.py:dynamic_multi_turn_loop` of
verl-agent, as carried by kingofspace0wzz/slea-rl, commit d247621c8ac64a23824abb37aa82ec65a61faa0e. Confirmed by executing both
(tests/golden/dapo.json, the same groups).

They differ: verl keeps a group of one and fails after `most` batches; verl-agent drops a group of one and keeps everything of the
last batch. verl compares the population deviation with 0, so that rounding can keep a group of equal fractions; verl-agent compares
the numbers. Both collect whole batches and keep groups in their order; verl cuts the surplus off, verl-agent (at this commit) keeps
it.
"""

import statistics


def verl(batches, wanted, most):
    """Numbers (batch, group) that are learned from. batches: scripted; each a list of groups, each a list of returns.

    wanted: groups per update. most: generation batches at most (0: no limit). ValueError: the authors' code ends the run.
    """
    kept = []
    for number, batch in enumerate(batches, 1):
        for place, returns in enumerate(batch):
            if statistics.pstdev(returns) > 0 or len(returns) == 1:
                kept.append((number - 1, place))
        if len(kept) >= wanted:
            return kept[:wanted]
        if 0 < most <= number:
            raise ValueError("too many batches")
    raise IndexError("the script is too short")


def verl_agent(batches, wanted, most):
    kept, number = [], 0
    while len(kept) < wanted and number < most:
        for place, returns in enumerate(batches[number]):
            if number + 1 == most or any(value != returns[0] for value in returns):
                kept.append((number, place))
        number += 1
    return kept
