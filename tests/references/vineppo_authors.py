"""VinePPO from the authors' code: which states are valued, and what a step is worth.

Source: McGill-NLP/VinePPO, commit efe7228469f21bad8cc8d4e44a3f688ed8cc6aac, `src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py`:
`_create_value_estimation_requests`, `_compute_mc_value`, `_compute_step_advantages`.
Confirmed by executing the first (up to its data sets) and the last (tests/golden/vineppo.json, largest difference 0).

A state is a prefix of the text, so equal prefixes share one estimate, in all trajectories. The state after the last step is not valued: it is 0.
With `last` (max_step_for_value_estimation), states after it are not valued; their value is the reward that follows. The question is always valued.
Rewards of the steps are 0 but for the last. gamma is 1.
"""


def valued(steps, last=None):
    """Numbers of the states that get fresh rollouts: state k is the one before step k. steps: number of steps."""
    highest = steps - 2 if last is None else min(steps - 2, last - 1)
    return [0] + [step + 1 for step in range(steps) if step <= highest]


def advantages(rewards, values):
    """rewards: of each step. values: of the state before each step, None where it was not valued."""
    values = [*values, 0.0]
    for step in range(len(rewards) - 1, -1, -1):
        if values[step] is not None:
            break
        values[step] = rewards[step] + values[step + 1]
    return [rewards[step] + values[step + 1] - values[step] for step in range(len(rewards))]
