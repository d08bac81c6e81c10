"""TCOD from the authors' code.

Source: kokolerk/TCOD, commit 465eef4406ad0cff675b36bd46f37f28b1736ff9.
`trinity/algorithm/advantage_fn/on_policy_distill_advantage.py:_compute_opd_advantage`,
`trinity/common/workflows/envs/TCOD/alfworld/TCOD_f2b_workflow.py:_compute_distill_window` and `_run_episode`,
`…/TCOD_b2f_workflow.py:_linear_checkpoint_step` and `run_async`.
Confirmed by executing all three functions (tests/golden/tcod.json, largest difference 0).

`batch` is the number of the batch, which the authors count from 1 (`trinity/explorer/explorer.py`: batch_id = explore_step_num + 1).
"""


def advantage(teacher, student, coef=1.0):
    """For each token: coef times the teacher's log-prob minus the student's when it sampled. No mean is subtracted, nothing is divided."""
    return [coef * (says - said) for says, said in zip(teacher, student, strict=True)]


def turn_limit(batch, every, limit):
    """Front to back: an attempt of this batch ends after so many turns. limit: the environment's own number of turns."""
    return min(1 + batch // every, limit)


def expert_turns(batch, every, actions):
    """Back to front: so many of the expert's `actions` actions are played before the student acts; 0 without an expert."""
    if actions == 0:
        return 0
    return max(0, min(actions - 1 - batch // every, actions - 1))
