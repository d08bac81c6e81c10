"""ScalingInter: attempts may take few turns at first, and more later.

    cap(step) = rounds[min(step // every, number of rounds − 1)]

Short attempts teach the basic skills cheaply; long ones then explore. The number of batches so far is the plan's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.methods.planning import TaskSlots
from turnwise.methods.registry import Brings, kl_loss, method, plan
from turnwise.methods.tcod import Horizon
from turnwise.util.errors import TurnwiseError


@plan("scaling_inter")
class ScalingInter(Horizon):
    """Every group once, with a turn limit that grows from phase to phase."""

    def __init__(
        self,
        *,
        rounds: Annotated[list[int], Help("the turn limit of each phase, in order; the run's own limit still holds")] = [10, 20, 30],  # noqa: B006
        every: Annotated[int, Help("iterations per phase", low=1)] = 100,
    ):
        super().__init__(every=every)
        if not rounds or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in rounds):
            raise TurnwiseError(f"scaling_inter: rounds is a list of turn limits of at least 1, such as [5, 8, 10], not {rounds!r}")
        self.rounds = list(rounds)

    def limited(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        cap = self.rounds[min(self.step // self.every, len(self.rounds) - 1)]
        return [replace(start, max_turns=cap if slots.max_turns is None else min(cap, slots.max_turns)) for start in starts]


@method(
    "scaling_inter",
    paper="AgentGym-RL / ScalingInter-RL, arXiv 2509.08755",
    changes="curriculum",
    costs="nothing; early attempts are shorter",
    evidence="code",
    options={ScalingInter: "rounds every"},
)
def scaling_inter() -> dict[str, Any]:
    """The turn limit of attempts grows while training."""
    own = {"plan.name": "scaling_inter", "credit.name": "grpo"}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token", "credit.norm": "std"} | kl_loss(0.001))
