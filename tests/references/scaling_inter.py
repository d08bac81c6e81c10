"""ScalingInter (A7): the cap on turns grows in stages.

Source: WooooDyy/AgentGym-RL, commit 82402a99c62a293735a3f412fb8ac9a600673bc0,
`AgentGym-RL/verl/agent_trainer/ppo/ray_trainer.py:StepRoundsScheduler` and `fit` (rounds are read before a batch is collected;
`step` is called after the update). Confirmed by executing the class (tests/golden/scaling_inter.json, the same numbers).

After a resume the authors' `set_global_steps` uses the number of the step (from 1) instead, so the limit changes one step earlier:
not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence


def cap(step: int, rounds: Sequence[int] = (10, 20, 30), every: int = 100) -> int:
    """rounds[min(step // every, len - 1)], step from 0. (10, 20, 30) is the setting for ScienceWorld and TextCraft."""
    return rounds[min(step // every, len(rounds) - 1)]
