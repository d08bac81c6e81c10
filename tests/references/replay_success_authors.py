"""ARPO-GUI's replay of successes, from the authors' code.

Source: dvlab-research/ARPO, commit 7489ae309e90d8b3b9e823f495b63e5116434060, `verl/trainer/replay_buffer.py:ReplayBuffer` and
`verl/trainer/ray_trainer.py:apply_replay`. Confirmed by executing both (tests/golden/replay_success.json, the same attempts).

The buffer is filled AFTER the whole batch was looked at, with the original attempts. `get_pos` draws uniformly. The replayed attempt replaces the first.
A peculiarity: it is stored under task_config["task_id"] and looked up under task_config["id"]; here they are the same.
"""

import numpy as np


class Replay:
    def __init__(self, size=8, stored_above=0.1, flat=0.05, poor=0.2):
        self.size, self.stored_above, self.flat, self.poor = size, stored_above, flat, poor
        self.stored = {}

    def batch(self, groups, pick):
        """groups: (task, [(attempt, score), …]). pick(stored attempts): one of them. Returns the attempts of each group."""
        result = []
        for task, attempts in groups:
            values = [score for _, score in attempts]
            names = [name for name, _ in attempts]
            if np.std(values) < self.flat and np.mean(values) < self.poor and self.stored.get(task):
                names = [pick(self.stored[task]), *names[1:]]
            result.append(names)
        for task, attempts in groups:
            for name, score in attempts:
                if score > self.stored_above:
                    self.stored[task] = (self.stored.get(task, []) + [name])[-self.size :]
        return result
