"""A recipe names a schedule and an objective in a file of the user's own; both remember, and a stopped run goes on with what they know."""

from __future__ import annotations

from pathlib import Path

from train_cases import Impatient, start, weights, without_times

import turnwise as tw
from turnwise.learn import checkpoint

MINE = '''
import numpy as np

from turnwise.methods.steps import Step
from turnwise.objectives import TokenLoss


class Backwards:
    """The last turns first, fewer with every update."""

    def __init__(self, *, fewest: int = 1):
        self.fewest, self.updates = fewest, 0

    def __call__(self, view):
        t = view.batch.rollouts.t
        self.updates += 1
        for turn in list(range(int(t.max()), -1, -1))[: max(self.fewest, 4 - self.updates)]:
            metrics = yield Step(rows=np.flatnonzero(t == turn), refresh=("old_logprob",))
            assert metrics == {} or abs(metrics["ratio"] - 1) < 1e-4

    def state(self):
        return {"updates": self.updates}

    def load_state(self, state):
        self.updates = state["updates"]


class Warming:
    """REINFORCE whose factor grows with every update."""

    def __init__(self, *, growth: float = 2.0):
        self.growth, self.factor = growth, 1.0

    def __call__(self, tokens):
        return TokenLoss(-self.factor * tokens.advantage * tokens.logprob, {})

    def observe(self, metrics):
        self.factor *= self.growth

    def state(self):
        return {"factor": self.factor}

    def load_state(self, state):
        self.factor = state["factor"]
'''


def test_a_schedule_and_an_objective_of_the_users_own_file_survive_a_stop(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    own = {
        "schedule.name": f"{tmp_path}/mine.py:Backwards",
        "schedule.fewest": 1,
        "objective.name": f"{tmp_path}/mine.py:Warming",
        "objective.growth": 1.5,
        "iterations": 3,
        "eval.n": 1,
    }
    whole = start(tmp_path / "whole", **own)
    stopped = start(tmp_path / "stopped", reporter=Impatient("collecting", 3), **own)
    assert stopped.interrupted and whole.metrics[-1]["learner/steps"] >= 1
    resumed = tw.train(resume=stopped.folder)
    assert without_times(resumed.metrics) == without_times(whole.metrics)
    assert all((weights(whole.folder)[name] == tensor).all() for name, tensor in weights(resumed.folder).items())
    found = checkpoint.latest_good(resumed.folder / "checkpoints")
    assert found is not None
    pieces = found.state["learner"]["pieces"]
    assert pieces["schedule"]["state"] == {"updates": 3} and pieces["objective"]["state"] == {"factor": 1.5**3}
