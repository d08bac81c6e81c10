"""RAGEN's rollout filter, of which StarPO-S is `top_k` with the metric `reward_variance` and a quarter kept.

Source: mll-lab-nu/RAGEN, commit 20daedc47558e000f7de912b060646bf2e8026bd,
`ragen/trainer/rollout_filter.py:RolloutFilter._select_top_groups` and `RewardRolloutFilter.filter`,
`ragen/trainer/agent_trainer.py` (empty steps), `config/base.yaml`. Confirmed by executing `_select_top_groups`
(tests/golden/starpo_s.json, the same groups in the same order).

The score named reward_variance (or reward_std) is the SAMPLE standard deviation of a group's episode rewards. Corner cases: without
`zero`, groups whose score is within 1e-10 of 0 leave before everything else, and `top_k` still counts the fraction of all groups;
`top_k` keeps at least 1; linear `top_p` keeps nothing if the scores above 0 do not reach the threshold, and nothing if the
threshold is at most 0; `top_p` with 1 or more keeps all (that remain). A training step with nothing kept is skipped; after 5 in a
row training ends.
"""

import math
from itertools import accumulate


def kept(values, strategy, keep, prefer="largest", zero=True, mass="linear", slack=0.01):
    """Numbers of the groups that are learned from, in the authors' order (best first; min_p: in order of the batch)."""
    order = [number for number, value in enumerate(values) if zero or abs(value) > 1e-10]
    if not order:
        return []
    sign = -1 if prefer == "largest" else 1
    ranked = sorted(order, key=lambda number: sign * values[number])
    if strategy == "top_k":
        return ranked[: max(min(int(keep * len(values)), len(order)), 1)]
    if strategy == "min_p":
        best = values[ranked[0]]
        if prefer == "largest":
            return [number for number in order if values[number] >= best * keep - 1e-10]
        return [number for number in order if values[number] <= best / (keep + 1e-10) + 1e-10]
    if keep >= 1:
        return order
    if mass == "softmax":
        shares = [math.exp(-sign * (values[number] - values[ranked[0]])) for number in ranked]
        reached = [total / sum(shares) >= keep for total in accumulate(shares)]
        return ranked[: reached.index(True) + 1] if any(reached) else ranked
    threshold = keep * sum(values[number] for number in order) - slack
    total, result = 0.0, []
    for number in ranked:
        if total >= threshold or values[number] <= 0:
            break
        total += values[number]
        result.append(number)
    return result if total >= threshold else []
