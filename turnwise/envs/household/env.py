"""The environment protocol over a household: what ALFWorld's games and generated houses have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.episodes import EpisodeEnv, check_choice
from turnwise.envs.household.expert import Expert
from turnwise.envs.household.world import Play, State, World

Anchor = Literal["observation", "state"]
Sight = Literal["all", "seen"]


class WorldEnv(EpisodeEnv):
    """Plays one task at a time. A subclass defines the `world(task)` of a task; worlds can be shared between environments.

    `anchor` is what counts as "the same state" when turns are compared: "observation" (the text; Observation.anchor stays None) or
    "state" (16 bytes of everything that can be noticed). The reward is the change of the score: 1 on winning, otherwise 0. There is no
    limit on steps: that belongs to the recipe. A household is deterministic, so `seed` has no effect.

    `expert_knows` is what the expert acts on: "all" (the true state: the shortest plan), or what has been "seen" in this episode, so that
    it first searches, one receptacle after another, and an agent with the same observations can learn from it.
    """

    depends_on = ("anchor", "expert_knows")

    def __init__(self, anchor: Anchor = "observation", expert_knows: Sight = "all"):
        check_choice("anchor", anchor, ("observation", "state"))
        check_choice("expert_knows", expert_knows, ("all", "seen"))
        super().__init__()
        self.anchor, self.expert_knows = anchor, expert_knows
        self._seen: set[int] = set()
        self._game: Play | None = None
        self._experts: tuple[World, Expert] | None = None

    @abstractmethod
    def world(self, task: Task) -> World:
        """The compiled house of a task."""

    def _begin(self, task: Task, seed: int) -> None:
        self._game, self._seen = Play(self.world(task)), set()

    def _play(self, action: str) -> Transition:
        play = self.play
        play.step(action)
        if self.expert_knows == "seen":
            self._seen |= self._expert(play.world).in_sight(play.state)
        return Transition(self._see(), float(play.won), play.won, play.won, {"won": play.won})

    def _see(self) -> Observation:
        play = self.play
        return Observation(play.text, (), play.actions, play.state.key() if self.anchor == "state" else None)

    def _kept(self) -> dict[str, Any]:
        """What has changed in the house, the last answer, and what was seen."""
        return {"changes": self.play.state.changes(), "text": self.play.text, "seen": sorted(self._seen)}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        world = self.world(task)
        self._game = Play(world, State.changed(world, kept["changes"]), str(kept["text"]))
        self._seen = set(world.known_fact(kept["seen"]))

    @property
    def play(self) -> Play:
        """The game being played, with its true state."""
        if self._game is None:
            raise EpisodeOver(self._over)
        return self._game

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
