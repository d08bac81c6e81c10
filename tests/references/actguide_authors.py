"""ActGuide-RL's search for the number of reference actions, from the authors' code.

Source: AMAP-ML/ActGuide-RL, commit 3384dbcf692b71e3d3bcdb94c17f6271a51bcd96, `verl/trainer/ppo/adaptive_guidance.py:AdaptiveGuidanceSearcher.search`,
`verl/trainer/ppo/ray_trainer.py:_collect_group_reward_stats` and `_selective_guidance_phase`,
`searchagent_scripts/config/multiturn_grpo_actguide.yaml` (5 searches of 2 rollouts, thresholds 0).
Confirmed by executing `search` with scripted rewards (tests/golden/actguide.json, the same numbers and probes).

A group is attempted again if its LARGEST reward is at most the threshold. All attempts of the group are replaced by guided ones with the number found,
also if no probe succeeded. The search starts between 0 and all actions, so a success at 0 gives 0 actions; a search that runs out of probes takes
the lower end, which no probe has tried.
"""


def searched(actions, succeeds, searches=5):
    """(number of actions that is shown, numbers that were probed). succeeds(number): whether any probe's reward is above the threshold."""
    low, high, probed = 0, actions, []
    for _ in range(searches):
        if low >= high:
            break
        middle = (low + high) // 2
        probed.append(middle)
        if succeeds(middle):
            high = middle
        else:
            low = middle + 1
    return low, probed


def again(rewards, threshold=0.0):
    return max(rewards) <= threshold
