"""ScienceWorld: thirty kinds of tasks from school science in a house with a workshop, played by the `scienceworld` package and Java.

    tw.make("scienceworld", tasks=["boil", "melt"], simplifications="easy")

A task is one variation of one kind, and the splits are the package's own. The environments of a Python process share one Java process. The
simulator takes no seed: the variation fixes everything, and the attempt's seed does nothing. There are no snapshots, because the simulator
cannot write its state: a branch replays its actions, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Literal, get_args

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.third_party import turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.scienceworld.simulator import FULL_SCORE, SPLITS, Seen, Simulator
from turnwise_envs.shared import java
from turnwise_envs.shared.curious import Curious
from turnwise_envs.shared.packages import load

Anchor = Literal["observation", "state"]
FOCUS = "focus on "
LONGEST = 1000  # characters of a command that the simulator's parser is given


class ScienceWorldEnv:
    """Tasks of ScienceWorld. `tasks`: the kinds that are played, all if none are named. `simplifications`: as the package names them,
    with commas between ("easy": all). `list_actions`: offer the valid actions, of which there are often more than a hundred. `anchor`:
    "observation", or "state" (what is seen and carried). `seconds`: the time limit of a call into Java. `heap_mb`: the memory that Java
    may use for all environments of a process. The reward is the gain in score; a full score is 1."""

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        simplifications: str = "",
        list_actions: bool = True,
        anchor: Anchor = "observation",
        max_turns: int = 100,
        seconds: float = 60.0,
        heap_mb: int = 2048,
    ):
        if anchor not in get_args(Anchor):
            raise TurnwiseError(f"scienceworld: anchor is observation or state, not {anchor!r}")
        if not seconds > 0 or heap_mb < 64:
            raise TurnwiseError(f"scienceworld: seconds must be positive and heap_mb at least 64, not {seconds!r} and {heap_mb!r}")
        turn_limit(max_turns, "scienceworld")
        load("scienceworld", "the adapter for ScienceWorld", "scienceworld")
        java.require("scienceworld")
        self.simplifications, self.list_actions, self.anchor, self.max_turns = simplifications, list_actions, anchor, max_turns
        self._limits = (seconds, heap_mb)
        self._sim: Simulator | None = Simulator(*self._limits)
        known = self._sim.kinds()
        self.kinds = list(tasks) if tasks is not None else known
        for kind in self.kinds:
            if kind not in known:
                self.close()
                raise unknown_name("task of ScienceWorld", kind, known)
        self._over = "call reset(task) before the first step"
        self._task: Task | None = None
        self._actions: list[str] = []
        self._plans: dict[str, list[str]] = {}
        self._score, self._goal, self._curious = 0, "", Curious()
        self._seen: Seen | None = None

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """One task per variation, by kind. `n` of them are the first variations of each kind in turn."""
        if split not in SPLITS:
            raise unknown_name("split of ScienceWorld:", split, ("train", "valid", "test"))
        sim = self._simulator()
        kinds = [[(kind, number) for number in sim.variations(kind, split)] for kind in self.kinds]
        if n is not None:
            kinds = [[found for found in chain.from_iterable(zip_longest(*kinds)) if found is not None][:n]]
        tasks = [Task(f"{kind}/{number}", split, {"kind": kind, "variation": number}, kind) for kind, number in chain.from_iterable(kinds)]
        return TaskSet(tasks, f"scienceworld/{split}")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._over, self._task, self._actions = "call reset(task) before the first step", None, []
        sim = self._simulator()
        sim.load(*_place(task), self.simplifications)
        seen = sim.play("look around", self.list_actions)
        self._task, self._over, self._score = task, "", seen.score
        words = " ".join(sim.description().split())
        goal = words[words.lower().find("your task is") :] if "your task is" in words.lower() else f"Your task is: {words}"
        self._goal, self._curious = goal.lower(), Curious()
        return self._observation(seen, f"{goal}\n")

    def _simulator(self) -> Simulator:
        """The simulator, in a new process if the last one is gone."""
        if self._sim is None or self._sim.lost:
            self._sim = Simulator(*self._limits)
        return self._sim

    def step(self, action: str) -> Transition:
        if self._over or self._task is None:
            raise EpisodeOver(f"scienceworld: {self._over}")
        if self._sim is None or self._sim.lost:
            self._again(self._task)
        assert self._sim is not None
        command = " ".join(well_formed(action).split())[:LONGEST]
        try:
            seen = self._sim.play(command, self.list_actions)
        except TurnwiseError:
            self._over = "the simulator failed: call reset(task) before the next step"
            raise
        self._actions.append(command)
        before, self._score = self._score, seen.score
        success = self._score >= FULL_SCORE
        ended = seen.completed or success
        if ended or len(self._actions) >= self.max_turns:
            self._over = "the episode is over: call reset(task) before the next step"
        known = {"score": self._score, "moves": len(self._actions), "truncated": bool(self._over) and not ended}
        return Transition(self._observation(seen), (self._score - before) / FULL_SCORE, bool(self._over), success, known)

    def _again(self, task: Task) -> None:
        """Another environment's call has ended the Java process: this attempt is played again in a new one, up to its last turn."""
        sim = self._simulator()
        sim.load(*_place(task), self.simplifications)
        for action in ("look around", *self._actions):
            sim.step(action)

    def _observation(self, seen: Seen, opening: str = "") -> Observation:
        self._seen = seen
        anchor = f"{seen.look}\n{seen.inventory}" if self.anchor == "state" else seen.text if opening else None
        return Observation(opening + seen.text, actions=seen.actions, anchor=anchor)

    def scripted_action(self) -> str | None:
        """What a simple rule does: everything that is listed, least tried first. It focuses only on what the task names, because a wrong
        focus ends the attempt. None if no actions are listed."""
        if self._over or self._seen is None:
            raise EpisodeOver(f"scienceworld: {self._over}")
        listed = [action for action in self._seen.actions or () if not action.startswith(FOCUS) or action[len(FOCUS) :] in self._goal]
        return self._curious.choose(self._seen.look, listed)

    def expert(self, task: Task) -> list[str]:
        """The package's own solution of a task (not always the shortest). The episode being played is left as it was."""
        if task.id not in self._plans:
            planner = Simulator(*self._limits)
            try:
                self._plans[task.id] = planner.solution(*_place(task), self.simplifications)
            finally:
                planner.close()
        return self._plans[task.id]

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        sim, self._sim = self._sim, None
        if sim is not None:
            sim.close()


def _place(task: Task) -> tuple[str, int]:
    kind, number = task.data.get("kind"), task.data.get("variation")
    if not isinstance(kind, str) or not isinstance(number, int):
        raise TurnwiseError(f"task {task.id!r} is not a task of ScienceWorld: its data names no kind and variation")
    return kind, number
