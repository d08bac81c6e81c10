"""Which attempts are made next. A plan is a generator: it yields attempts, gets them back finished, and returns what to learn from.
Attempts that a fault has ended, and those without a turn, never come back: whoever collects leaves them out and counts them.

    @turnwise.methods.plan("twice")
    class Twice(Plan):
        '''Every group, and again those that failed as a whole.'''

        def gather(self, slots: TaskSlots, groups: int) -> Rounds:
            found = yield slots.groups(groups)
            …
            return Gathered(found, {"again": 3.0})

`TaskSlots` gives out attempts. Every group of a run has a *slot*, counted from the run's start; slot and seed alone fix its task and its
chance, so a checkpoint needs only the number of slots that are used up, and whatever state the plan itself keeps (`state`, `load_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from turnwise.config.options import Help
from turnwise.data.attempts import Branch, Start
from turnwise.data.rollouts import Trajectory, Turn, alike
from turnwise.data.tasks import Task, TaskSet
from turnwise.methods.registry import plan
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import Order, derive


@dataclass(init=False)
class Gathered:
    """What a plan brings home: the trajectories to learn from, and counts for the log. Trajectories of earlier batches may be among them,
    with a group of this batch and an id that no other has (`TaskSlots.adopt`)."""

    trajectories: list[Trajectory]
    counts: dict[str, float]

    def __init__(self, trajectories: list[Trajectory], counts: Mapping[str, float] | None = None):
        self.trajectories = trajectories
        self.counts = {name: float(count) for name, count in (counts or {}).items()}


Member = TypeVar("Member", Start, Trajectory)
Rounds = Generator[Sequence[Start], list[Trajectory], Gathered]


@dataclass
class TaskSlots:
    """The attempts of a run. `used` is how many slots are used up. A group shares the environment's seed, unless `own_seeds` gives each
    attempt its own. `max_turns` is the run's step limit. `expert` plays tasks as the environment's expert does, `say` lets the current
    policy answer texts, and `look` resets the environment and gives what the agent is told first. A run gives them. `vocabulary` is the
    number of tokens that the policy knows, 0 if that is unknown."""

    tasks: TaskSet
    seed: int
    group_size: int
    shuffle: bool = True
    own_seeds: bool = False
    used: int = 0
    max_turns: int | None = None
    expert: Callable[[Sequence[Task]], list[Trajectory]] | None = field(default=None, repr=False)
    say: Callable[[Sequence[str], int], list[Turn]] | None = field(default=None, repr=False)
    look: Callable[[Sequence[Start]], list[str]] | None = field(default=None, repr=False)
    vocabulary: int = 0
    _more: int = field(default=0, init=False, repr=False)  # attempts of this batch beyond those that slots have
    _repeats: int = field(default=0, init=False, repr=False)  # batches before this one that branched where no slot was used up since
    _branched: int = field(default=-1, init=False, repr=False)  # the slot of the last branch
    _begun: int = field(default=-1, init=False, repr=False)  # the slot at which this batch began
    _given: dict[str, Task] = field(default_factory=dict, init=False, repr=False)  # the tasks of this batch by id

    def begin(self) -> None:
        """A new batch begins."""
        self._more = 0
        self._repeats = self._repeats + 1 if self._branched == self.used else 0
        self._begun = self.used
        self._given.clear()

    def groups(self, n: int) -> list[Start]:
        """The next n groups in the run's order."""
        return [start for _ in range(n) for start in self.group(self.tasks[self._order[self.used]])]

    def coming(self, n: int) -> list[Task]:
        """The tasks of the next n slots, as far as a plan takes them in order; nothing is used up."""
        return [self.tasks[self._order[slot]] for slot in range(self.used, self.used + n)]

    def starts(self, slot: int, groups: int) -> list[Start]:
        """The attempts of `groups` groups from a slot on; nothing is used up."""
        return replace(self, used=slot).groups(groups)

    def group(self, task: Task, n: int | None = None) -> list[Start]:
        """n attempts (default: the group size) at a task of the plan's choice, in a group of their own. Uses up one slot."""
        slot, self.used = self.used, self.used + 1
        shared = derive(self.seed, "environment", slot)
        self._given[task.id] = task
        return [
            Start(
                task,
                slot,
                slot * self.group_size + member if member < self.group_size else self._number(),
                derive(shared, member) if self.own_seeds else shared,
                derive(self.seed, "policy", slot, member),
            )
            for member in range(self.group_size if n is None else n)
        ]

    def more(self, start: Start, n: int = 1) -> list[Start]:
        """n further attempts at the task of a planned one, from its beginning and in its group, with chance of their own."""
        numbers = [self._number() for _ in range(n)]
        return [replace(start, number=number, policy_seed=derive(self.seed, "more", self.used, -number)) for number in numbers]

    def branch(self, trajectory: Trajectory, t: int, n: int = 1, group: int | str | None = None, task: Task | None = None) -> list[Start]:
        """n attempts that start before turn t of a finished attempt, in its group unless another is given. The task of an attempt of an
        earlier batch has to be given too."""
        task = task or self._given.get(trajectory.task)
        if task is None:
            raise TurnwiseError(
                f"task {trajectory.task!r} of trajectory {trajectory.id!r} was not attempted in this batch: give it to branch(…, task=task)"
            )
        numbers = [self._number() for _ in range(n)]
        own, branch = trajectory.group if group is None else group, Branch(trajectory, t)
        self._branched = self.used
        # the numbers of a batch begin anew, and so would the chance of its branches where no slot was used up since the last ones
        again = ("again", self._repeats) if self._repeats and self.used == self._begun else ()
        seeds = [derive(self.seed, "branch", self.used, -number, *again) for number in numbers]
        return [Start(task, own, number, trajectory.seed, seed, branch) for number, seed in zip(numbers, seeds, strict=True)]

    def adopt(self, trajectory: Trajectory, group: int | str) -> Trajectory:
        """A trajectory of an earlier batch as one of this batch: in this group, with an id that no attempt has, and without its parent. The
        task has to be one that this batch attempts."""
        return replace(trajectory, group=group, id=self._number(), parent=None, branch_t=0)

    def demonstrations(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The expert's attempts at these tasks, one each, in the agent's own prompts. Branch from one to begin where the expert was; its
        turns are then part of the attempt, and not learned from. An attempt that a fault ended may be shorter, or have no turns."""
        if self.expert is None:
            raise TurnwiseError('the plan asks for the expert\'s attempts, and there is none: declare needs=("env.expert",)')
        return self.expert(tasks)

    def solutions(self, starts: Sequence[Start]) -> dict[str, Trajectory]:
        """The expert's attempts at the tasks of these attempts, by task, where it succeeded."""
        tasks = {start.task.id: start.task for start in starts}
        return {one.task: one for one in self.demonstrations(list(tasks.values())) if one.success and one.turns}

    def answers(self, texts: Sequence[str], seed: int) -> list[str]:
        """What the current policy answers to each of these messages."""
        return [turn.response.strip() for turn in self.generated(texts, seed)]

    def generated(self, texts: Sequence[str], seed: int) -> list[Turn]:
        """The same as turns, with tokens and log-probs: a plan can put them into trajectories of their own, and they are learned from. A
        turn without tokens: the message was too long, or the engine failed."""
        if self.say is None:
            raise TurnwiseError("the plan asks the policy for answers, and there is no policy here: only a training run has one")
        return self.say(texts, seed)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        """What the agent is told at the beginning of each of these attempts: the goal and the first observation. Empty after a fault."""
        if self.look is None:
            raise TurnwiseError("the plan asks how attempts begin, and there is no environment here: only a training run has one")
        return self.look(starts)

    def state(self) -> dict[str, int]:
        """What decides about further branches, beside `used`; empty before the first one."""
        return {"branched": self._branched, "repeats": self._repeats} if self._branched >= 0 else {}

    def load_state(self, used: int, state: Mapping[str, int]) -> None:
        """Go on where a run was."""
        self.used, self._branched, self._repeats = used, state.get("branched", -1), state.get("repeats", 0)

    @cached_property
    def _order(self) -> Order:
        return Order(len(self.tasks), derive(self.seed, "tasks"), self.shuffle)

    def _number(self) -> int:
        self._more += 1
        return -self._more


class Plan:
    """The base class of plans. `state` is kept in checkpoints (JSON values), and `load_state` gets it after a resume. `drawing` is an
    object that has a say in how the turns of the plan's attempts are drawn (`turnwise/collect/drawing.py`). `overlaps`: a batch may be
    gathered before the last one is complete, on a cluster with staleness; only for plans of one round without a state. `old_logprobs`:
    whose they have to be ("engine"), if the plan learns from other prompts than it samples with; None: any."""

    drawing: Any = None
    overlaps: bool = False
    old_logprobs: str | None = None

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        raise TurnwiseError(
            f"plan {type(self).__name__} has no gather(self, slots, groups): write one that yields attempts, gets them back finished and "
            "returns Gathered(…); docs/guides/extending.md has examples"
        )

    def evaluated(self, start: Start) -> Start:
        """How an attempt of the run's evaluations is made: a plan may add a hint (`dataclasses.replace`)."""
        return start

    def evaluation(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        """How all attempts of one of the run's evaluations are made. `slots.generated` asks the policy at the evaluation's temperature."""
        return [self.evaluated(start) for start in starts]

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...


@plan("plain")
class Plain(Plan):
    """Collect every group once."""

    overlaps = True

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        return Gathered((yield slots.groups(groups)))


@plan("dynamic")
@dataclass(kw_only=True, eq=False)
class Dynamic(Plan):
    """Drop groups whose attempts all have the same return, and collect further groups instead."""

    refills: Annotated[int, Help("how often further groups are collected at most", low=0)] = 10
    metric: Annotated[Literal["return", "success"], Help("what has to differ between the attempts of a group")] = "return"

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        counts = {"dropped_groups": 0.0, "refills": -1.0}
        kept: list[Trajectory] = []
        kept_groups = 0
        while kept_groups < groups and counts["refills"] < self.refills:
            wanted = groups - kept_groups
            attempts = yield slots.groups(wanted)
            measured = "reward" if self.metric == "return" else "success"
            groups_of = by_group(attempts)
            differing = {group for group, members in groups_of.items() if not alike([float(getattr(one, measured)) for one in members])}
            kept += [trajectory for trajectory in attempts if trajectory.group in differing]
            kept_groups += len(differing)
            counts["refills"] += 1
            counts["dropped_groups"] += wanted - len(differing)
        return Gathered(kept, counts)


def by_group(members: Sequence[Member]) -> dict[int | str, list[Member]]:
    """The trajectories, or planned attempts, of each group; groups in the order in which they first occur."""
    groups: dict[int | str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
    return groups


def summary(attempts: Sequence[Trajectory]) -> dict[str, float]:
    """Counts of some attempts alone, for a batch that has other trajectories too."""
    n = max(len(attempts), 1)
    return {
        "trajectories": float(len(attempts)),
        "success": sum(attempt.success for attempt in attempts) / n,
        "reward": sum(attempt.reward for attempt in attempts) / n,
        "length": sum(len(attempt.turns) for attempt in attempts) / n,
    }
