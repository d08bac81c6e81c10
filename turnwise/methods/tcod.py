"""TCOD: on-policy distillation from a teacher, over a horizon that grows.

A student that is far from its teacher soon leaves the situations that the teacher knows. So it is first taught where it cannot be far off:

    f2b   front to back: attempts end after min(1 + batch // every, limit) turns
    b2f   back to front: the first c = max(0, L − 1 − batch // every) of the expert's L actions are played, then the student acts

`batch` is the number of the batch, 1 for the first one. What the expert played is part of the prompts and is not learned from.

Credit of a token is how much more likely the teacher finds it than the student who sampled it:

    A(token) = coef · (log p_teacher − log p_student)

Its mean over the student's samples is −coef · KL(student ‖ teacher). No reward is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.registry import PerToken
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.methods.registry import Brings, method, plan, section, signal


@signal("teacher_logprobs", needs=("model.teacher",), gives=("token.teacher_logprob",))
def teacher_logprobs(batch: Batch, models: Any) -> Mapping[str, Any]:
    """The log-prob of every sampled token under the model called teacher."""
    return {"token.teacher_logprob": models["teacher"].score(batch)}


@dataclass(kw_only=True, eq=False)
class Horizon(Plan, ABC):
    """Attempts over a horizon that grows every few batches. The number of batches so far is its state."""

    every: int
    step: int = field(default=0, init=False)

    @property
    def grown(self) -> int:
        """The turns by which the horizon has grown in the next batch."""
        return (self.step + 1) // self.every

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = self.limited(slots, slots.groups(groups))
        attempts = yield starts
        self.step += 1
        given = sum(start.branch.t for start in starts if start.branch is not None) / max(len(starts), 1)
        horizon = {"given_turns": given} if given else {"max_turns": float(starts[0].max_turns)} if starts and starts[0].max_turns else {}
        return Gathered(attempts, horizon)

    @abstractmethod
    def limited(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        """The attempts as far as the horizon reaches."""

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@plan("tcod_f2b")
@dataclass(kw_only=True, eq=False)
class FrontToBack(Horizon):
    """Attempts end after a number of turns that grows by one every few batches."""

    every: Annotated[int, Help("iterations per turn that is added", low=1)] = 6
    limit: Annotated[int | None, Help("the largest number of turns; none: the run's own", low=1)] = None

    def limited(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        reach = min(n for n in (1 + self.grown, self.limit, slots.max_turns) if n is not None)
        return [replace(start, max_turns=reach) for start in starts]


@plan("tcod_b2f", needs=("env.expert",))
@dataclass(kw_only=True, eq=False)
class BackToFront(Horizon):
    """The expert plays the first turns of an attempt, one fewer every few batches; the student plays the rest."""

    every: Annotated[int, Help("iterations per turn that the expert gives up", low=1)] = 5

    def limited(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        solutions, planned = slots.solutions(starts), []
        for start in starts:
            given = max(0, len(solutions[start.task.id].turns) - 1 - self.grown) if start.task.id in solutions else 0
            planned += slots.branch(solutions[start.task.id], given, group=start.group, task=start.task) if given else [start]
        return planned


@credit.register("tcod", paper="TCOD, arXiv 2604.24005", needs=("token.teacher_logprob", "token.logprob"))
def tcod_credit(r: Rollouts, *, coef: Annotated[float, Help("factor of the gap", low=0)] = 1.0) -> PerToken:
    """The teacher's log-prob of each token minus the student's."""
    return PerToken(coef * (r.column("token.teacher_logprob") - r.column("token.logprob")))


@method(
    "tcod",
    paper="TCOD, arXiv 2604.24005",
    changes="curriculum, credit, objective",
    costs="one scoring pass of the teacher; b2f: the expert plays every task",
    evidence="code",
    options={tcod_credit: "coef"},
)
def tcod(
    *,
    direction: Annotated[Literal["f2b", "b2f"], Help("the horizon grows from the first turn on, or from the last one back")] = "f2b",
    every: Annotated[int | None, Help("iterations per turn that is added; none: 6 for f2b, 5 for b2f", low=1)] = None,
) -> dict[str, Any]:
    """Distillation from a teacher on the student's own samples, over a growing number of turns."""
    steps = every or (6 if direction == "f2b" else 5)
    own = section("plan", name=f"tcod_{direction}", every=steps)
    own |= {"credit.name": "tcod", "signal": [{"name": "teacher_logprobs"}], "objective.name": "clip"}
    return Brings(own, {"objective.aggregation": "turn" if direction == "f2b" else "token", "objective.kl": "off"})
