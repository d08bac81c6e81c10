"""ScienceWorld: thirty kinds of tasks from school science in a house with a workshop, played by the `scienceworld` package and Java.

    tw.make("scienceworld", tasks=["boil", "melt"], simplifications="easy")

A task is one variation of one kind, and the splits are the package's own. Every environment is a separate Java process, which takes a
second or more to start and a few hundred megabytes: give it workers, and no more slots than fit. The simulator takes no seed: the
variation fixes everything, and the attempt's seed does nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from turnwise.adapters.base import load, turn_limit, well_formed
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.util.errors import TurnwiseError, unknown_name

SPLITS = ("train", "dev", "test")
FULL_SCORE = 100
Anchor = Literal["observation", "state"]
_variations: dict[str, dict[str, list[int]]] = {}  # by kind and split: the query has to load the kind, and the answer never changes


class ScienceWorldEnv:
    """Tasks of ScienceWorld. `tasks`: the kinds that are played, all if none are named. `simplifications`: as the package names them,
    with commas between ("easy": all). `list_actions`: offer the valid actions, of which there are often more than a hundred. `anchor`:
    "observation", or "state" (what is seen and carried). The reward is the gain in score; a full score is 1."""

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        simplifications: str = "",
        list_actions: bool = True,
        anchor: Anchor = "observation",
        max_turns: int = 100,
    ):
        if anchor not in get_args(Anchor):
            raise TurnwiseError(f"scienceworld: anchor is observation or state, not {anchor!r}")
        turn_limit(max_turns, "scienceworld")
        package = load("scienceworld", "the adapter for ScienceWorld", "scienceworld")
        if shutil.which("java") is None:
            raise TurnwiseError(
                "scienceworld: its simulator needs Java, and there is no `java` here. Install a Java runtime (1.8 or newer)"
            )
        self.simplifications, self.list_actions, self.anchor, self.max_turns = simplifications, list_actions, anchor, max_turns
        self._sim: Any = package.ScienceWorldEnv("", envStepLimit=max_turns + FULL_SCORE)  # the limit is counted here, not there
        known = list(self._sim.get_task_names())
        self.kinds = list(tasks) if tasks is not None else known
        for kind in self.kinds:
            if kind not in known:
                self.close()
                raise unknown_name("task of ScienceWorld", kind, known)
        self._over = "call reset(task) before the first step"
        self._played: tuple[Task, list[str]] | None = None
        self._plans: dict[str, list[str]] = {}
        self._score = 0

    def tasks(self, split: str = "train") -> TaskSet:
        """One task per variation, by kind."""
        if split not in SPLITS:
            raise unknown_name("split of ScienceWorld:", split, SPLITS)
        found = [(kind, number) for kind in self.kinds for number in self._variations(kind)[split]]
        return TaskSet(
            [Task(f"{kind}/{number}", split, {"kind": kind, "variation": number}) for kind, number in found], f"scienceworld/{split}"
        )

    def _variations(self, kind: str) -> dict[str, list[int]]:
        if kind not in _variations:
            self._sim.load(kind, 0, "")
            _variations[kind] = {split: [int(number) for number in getattr(self._sim, f"get_variations_{split}")()] for split in SPLITS}
            self._restore()
        return _variations[kind]

    def reset(self, task: Task, seed: int = 0) -> Observation:
        text, info = self._begin(task)
        self._played, self._over = (task, []), ""
        self._score = int(info["score"])
        words = " ".join(str(info.get("taskDesc", "")).split())
        goal = words[words.lower().find("your task is") :] if "your task is" in words.lower() else f"Your task is: {words}"
        return self._observation(text, info, f"{goal}\n")

    def _begin(self, task: Task, plan: bool = False) -> tuple[str, Mapping[str, Any]]:
        kind, number = task.data.get("kind"), task.data.get("variation")
        if not isinstance(kind, str) or not isinstance(number, int):
            raise TurnwiseError(f"task {task.id!r} is not a task of ScienceWorld: its data names no kind and variation")
        self._sim.load(kind, number, self.simplifications, generateGoldPath=plan)
        text, info = self._sim.reset()
        return str(text), info

    def step(self, action: str) -> Transition:
        if self._over or self._played is None:
            raise EpisodeOver(f"scienceworld: {self._over}")
        command = " ".join(well_formed(action).split())
        text, _, completed, info = self._sim.step(command)
        actions = self._played[1]
        actions.append(command)
        before, self._score = self._score, int(info["score"])
        success = self._score >= FULL_SCORE
        ended = bool(completed) or success
        if ended or len(actions) >= self.max_turns:
            self._over = "the episode is over: call reset(task) before the next step"
        known = {"score": self._score, "moves": int(info.get("moves", 0)), "truncated": bool(self._over) and not ended}
        reward = (self._score - before) / FULL_SCORE
        return Transition(self._observation(str(text), info), reward, bool(self._over), success, known)

    def _observation(self, text: str, info: Mapping[str, Any], opening: str = "") -> Observation:
        valid = tuple(dict.fromkeys(str(action) for action in info.get("valid", ()))) if self.list_actions else None
        anchor = f"{info.get('look', '')}\n{info.get('inv', '')}" if self.anchor == "state" else text if opening else None
        return Observation(opening + text, actions=valid, anchor=anchor)

    def expert(self, task: Task) -> list[str]:
        """The package's own solution of a task (not always the shortest). The episode being played is left as it was."""
        if task.id not in self._plans:
            self._begin(task, plan=True)
            self._plans[task.id] = [str(action) for action in self._sim.get_gold_action_sequence()]
            self._restore()
        return self._plans[task.id]

    def _restore(self) -> None:
        """The simulator holds one episode: after another task was loaded, the current one is replayed up to its last turn."""
        if self._played is not None and not self._over:
            self._begin(self._played[0])
            for action in self._played[1]:
                self._sim.step(action)

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        sim, self._sim = self._sim, None
        if sim is not None:
            sim.close()
