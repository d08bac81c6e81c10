"""ScalingInter-RL's number of turns, from the authors' code.

Source: WooooDyy/AgentGym-RL, commit 82402a99c62a293735a3f412fb8ac9a600673bc0, `AgentGym-RL/verl/agent_trainer/ppo/ray_trainer.py:StepRoundsScheduler`
and `fit` (rounds are read before a batch is collected; `step` is called after the update). Confirmed by executing the class
(tests/golden/scaling_inter.json, the same numbers).

After a resume the authors' `set_global_steps` uses the number of the step (from 1) instead, so the limit changes one step earlier: not repeated.
"""


def turns(batch, rounds, every):
    """batch counts from 0."""
    return rounds[min(batch // every, len(rounds) - 1)]
