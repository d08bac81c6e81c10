"""ScalingInter: attempts may take few turns at first, and more later.

    cap(step) = rounds[min(step // every, number of rounds − 1)]

Short attempts teach the basic skills cheaply; long ones then explore. The number of batches so far is the plan's state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.authors import kl_loss
from turnwise.methods.planning import Gathered, Places, Plan, Rounds
from turnwise.methods.registry import Brings, method, plan
from turnwise.util.errors import TurnwiseError

Caps = Annotated[list[int], Help("the turn limit of each phase, in order; the run's own limit still holds")]
Every = Annotated[int, Help("iterations per phase", low=1)]
ROUNDS = [10, 20, 30]


@plan("scaling_inter")
class ScalingInter(Plan):
    """Every group once, with a turn limit that grows from phase to phase."""

    def __init__(self, *, rounds: Caps = ROUNDS, every: Every = 100):
        if not rounds or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in rounds):
            raise TurnwiseError(f"scaling_inter: rounds is a list of turn limits of at least 1, such as [5, 8, 10], not {rounds!r}")
        self.rounds, self.every, self.step = list(rounds), every, 0

    @property
    def cap(self) -> int:
        """The turn limit of the next batch."""
        return self.rounds[min(self.step // self.every, len(self.rounds) - 1)]

    def gather(self, places: Places, groups: int) -> Rounds:
        cap = self.cap if places.max_turns is None else min(self.cap, places.max_turns)
        attempts = yield [replace(start, max_turns=cap) for start in places.groups(groups)]
        self.step += 1
        return Gathered(attempts, {"max_turns": float(cap)})

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@method(
    "scaling_inter",
    paper="AgentGym-RL / ScalingInter-RL, arXiv 2509.08755",
    changes="curriculum",
    costs="nothing; early attempts are shorter",
    evidence="code",
)
def scaling_inter(*, rounds: Caps = ROUNDS, every: Every = 100) -> dict[str, Any]:
    """The turn limit of attempts grows while training."""
    own = {"plan.name": "scaling_inter", "plan.rounds": list(rounds), "plan.every": every, "credit.name": "grpo"}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token", "credit.norm": "std"} | kl_loss(0.001))
