"""Updates in reverse order of turns, each step seeing the effect of the last one.

What the first turn is worth depends on how the policy will play the later ones. So the last turns are updated first, and every earlier turn
then asks how the policy that follows it has just changed: its advantage is multiplied by the probability ratio, new over old, of all later
turns of its attempt. A trajectory whose ending has become more likely counts more, one whose ending has been unlearned counts less.

A schedule is a generator. It yields one `Step` per optimiser step, and whatever it computes between two of them sees the new weights.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from turnwise import methods
from turnwise.config.options import Help
from turnwise.methods import ScheduleView, Step


@methods.schedule("backwards", needs=("turn.advantage",))
class Backwards:
    """The last turns first; an earlier turn's advantage is weighed by how likely its later turns have become."""

    def __init__(self, *, bound: Annotated[float, Help("a weight lies between 1 / bound and bound", low=1)] = 2.0):
        self.bound = bound
        self.largest = 1.0  # the weight farthest from 1 so far: kept in checkpoints, for whoever wonders whether it did anything

    def __call__(self, view: ScheduleView) -> Generator[Step, dict[str, float], None]:
        rollouts = view.batch.rollouts
        advantage = view.batch.column("turn.advantage")
        before = view.score()  # log-probs of all tokens, with the weights as they are now
        for turn in range(int(rollouts.t.max()), -1, -1):
            weight = self.weights(view, view.score() - before, turn)
            self.largest = max(self.largest, *np.maximum(weight, 1 / weight).tolist())
            # `columns` holds for this step alone. `refresh` computes old log-probs again: the ratio of this step starts at 1,
            # although the steps for later turns have moved the weights.
            yield Step(rows=np.flatnonzero(rollouts.t == turn), columns={"turn.advantage": advantage * weight}, refresh=("old_logprob",))

    def weights(self, view: ScheduleView, change: NDArray[np.float32], turn: int) -> NDArray[np.float64]:
        """One weight per row: the ratio of all turns after `turn` of the row's trajectory, bounded."""
        rollouts = view.batch.rollouts
        later = np.repeat(rollouts.t > turn, rollouts.tokens)  # per token: whether it belongs to a later turn
        of_token = np.repeat(rollouts.trajectory, rollouts.tokens)
        log_ratio = np.bincount(of_token, change * later, len(rollouts.trajectory_labels))
        limit = np.log(self.bound)
        weight: NDArray[np.float64] = np.exp(np.clip(log_ratio, -limit, limit))[rollouts.trajectory]
        return weight

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps: plain JSON."""
        return {"largest": self.largest}

    def load_state(self, state: dict[str, float]) -> None:
        self.largest = state["largest"]
