"""The environment protocol over a household: what ALFWorld's games and generated houses have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.household.expert import Expert
from turnwise.envs.household.world import Play, State, World
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name

Anchor = Literal["observation", "state"]
Sight = Literal["all", "seen"]


class WorldEnv(ABC):
    """Plays one task at a time. A subclass defines the `world(task)` of a task; worlds can be shared between environments.

    `anchor` is what counts as "the same state" when turns are compared: "observation" (the text; Observation.anchor stays None) or
    "state" (16 bytes of everything that can be noticed). The reward is the change of the score: 1 on winning, otherwise 0. There is no
    limit on steps: that belongs to the recipe. A household is deterministic, so `seed` has no effect.

    `expert_knows` is what the expert acts on: "all" (the true state: the shortest plan), or what has been "seen" in this episode, so that
    it first searches, one receptacle after another, and an agent with the same observations can learn from it.
    """

    name: ClassVar[str]  # of the environment, in its snapshots

    def __init__(self, anchor: Anchor = "observation", expert_knows: Sight = "all"):
        if anchor not in ("observation", "state"):
            raise unknown_name("anchor", str(anchor), ("observation", "state"))
        if expert_knows not in ("all", "seen"):
            raise unknown_name("expert_knows", str(expert_knows), ("all", "seen"))
        self.anchor, self.expert_knows = anchor, expert_knows
        self._seen: set[int] = set()
        self._play: Play | None = None
        self._task: Task | None = None
        self._over = "step() was called before reset(): call reset(task) first"
        self._experts: tuple[World, Expert] | None = None

    @abstractmethod
    def world(self, task: Task) -> World:
        """The compiled house of a task."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._play, self._task = Play(self.world(task)), task
        self._over, self._seen = "", set()
        return self._observation(self._play)

    def step(self, action: str) -> Transition:
        play = self._play
        if play is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        play.step(action)
        if self.expert_knows == "seen":
            self._seen |= self._expert(play.world).in_sight(play.state)
        if play.won:
            self._over = "the episode is over (the task was solved): call reset(task) before the next step"
        return Transition(self._observation(play), float(play.won), play.won, play.won, {"won": play.won})

    def _observation(self, play: Play) -> Observation:
        return Observation(play.text, (), play.actions, play.state.key() if self.anchor == "state" else None)

    def snapshot(self) -> bytes:
        """The task, what has changed in its house, and the last answer."""
        play, task = self._play, self._task
        if play is None or task is None or self._over:
            raise EpisodeOver(self._over)
        state = {"task": self._task_fields(task), "changes": play.state.changes(), "text": play.text, "seen": sorted(self._seen)}
        return pack(self.name, state, {"anchor": self.anchor, "expert_knows": self.expert_knows})

    def restore(self, state: bytes) -> Observation:
        """Continue where a snapshot was taken."""
        kept = unpack(state, self.name, {"anchor": self.anchor, "expert_knows": self.expert_knows})
        with restoring(self.name):
            task = Task.from_json(kept["task"])
            world = self.world(task)
            play, seen = Play(world, State.changed(world, kept["changes"]), str(kept["text"])), set(world.known_fact(kept["seen"]))
        self._play, self._task, self._over, self._seen = play, task, "", seen
        return self._observation(play)

    def _task_fields(self, task: Task) -> dict[str, Any]:
        """What a snapshot keeps of the task: enough to find the same house again."""
        return task.to_json()

    def close(self) -> None:
        self._play = self._task = None
        self._over = "the environment was closed: call reset(task) first"

    @property
    def play(self) -> Play:
        """The game being played, with its true state."""
        if self._play is None:
            raise EpisodeOver(self._over)
        return self._play

    def expert(self, task: Task) -> list[str]:
        """The expert's commands from the task's start; the last one wins. The episode being played is left alone."""
        play, seen, said = Play(self.world(task)), set[int](), list[str]()
        while plan := self._plan(play, seen):
            said += plan
            for command in plan:
                play.step(command)
                seen |= self._expert(play.world).in_sight(play.state)
        return said

    def expert_plan(self) -> list[str]:
        """The expert's next commands from the current state: to the end, or as many as its knowledge allows; empty once the task is
        solved."""
        return self._plan(self.play, self._seen)

    def _plan(self, play: Play, seen: set[int]) -> list[str]:
        expert = self._expert(play.world)
        if self.expert_knows == "all" or play.won:
            return expert.plan(play.state)
        return expert.plan_with(play.state, seen) or expert.search(play.state, seen) or expert.plan(play.state)

    def expert_action(self) -> str:
        """The expert's next command in the current state."""
        plan = self.expert_plan()
        if not plan:
            raise EpisodeOver("the task is solved: there is nothing left for the expert to do")
        return plan[0]

    def expert_distance(self) -> int:
        """How many commands an omniscient expert still needs from the current state."""
        return len(self._expert(self.play.world).plan(self.play.state))

    def _expert(self, world: World) -> Expert:
        if self._experts is None or self._experts[0] is not world:
            self._experts = (world, Expert(world))
        return self._experts[1]
