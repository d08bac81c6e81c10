"""One agent in three roles: it names a subtask, acts in it, and writes down its progress. Every prompt is about a single step.

Any text environment takes the option `subtasks`, the most actions of one subtask, as in `make("household", subtasks=10)`. Turns are then:

    subtask    sees the subtasks so far, the progress of the last one, the observation        says the next subtask
    action     sees the subtask, the progress in it, the observation                          acts; `; done` behind it ends the subtask
    progress   sees the subtask, the progress before, the action, what it led to              says the progress

Only actions reach the environment. `info["step"]` has the role of a turn, whether its subtask ends with it (`ends`), and whether that was
completed: called done, or the attempt was won (`completed`). The turn limit counts turns of all roles.

The expert names a subtask by the last of its next three actions, if it can look ahead (a plan, or snapshots); otherwise by the next one.
Its progress is its last three actions in the subtask.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Restorable, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.envs.subgoals import ahead
from turnwise.util.errors import TurnwiseError

Role = Literal["subtask", "action", "progress"]
ROLES: tuple[Role, ...] = ("subtask", "action", "progress")
DONE = "; done"
LONGEST = 300  # characters of a subtask or a progress that are shown
AHEAD = 3  # actions of the expert that make a subtask, and that its progress lists
NONE = "none"


@dataclass(frozen=True, slots=True)
class Subtasks:
    """Makes environments that are played in three roles. It can be sent to worker processes."""

    factory: Callable[[], Any]
    longest: int

    def __post_init__(self) -> None:
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or self.longest < 0:
            raise TurnwiseError(f"subtasks is the largest number of actions of a subtask (0: no subtasks), not {self.longest!r}")

    def __call__(self) -> Any:
        return self.factory() if self.longest == 0 else SubtasksEnv(self.factory(), self.longest)


@dataclass
class Progress:
    """Where an attempt is. `ended` are the subtasks before this one, `actions` those of this one."""

    role: Role = "subtask"
    ended: list[str] = field(default_factory=list)
    subtask: str = NONE
    progress: str = NONE
    actions: list[str] = field(default_factory=list)
    ends: bool = False
    completed: bool = False


class SubtasksEnv:
    """An environment that is played in three roles. Tasks, limits and instructions are the environment's own."""

    def __init__(self, env: Any, longest: int):
        self._env, self._longest = env, longest
        self._seen, self._at = Observation(""), Progress()
        self._over = "step() was called before reset(): call reset(task) first"
        for name in ("expert", "expert_action"):
            if callable(getattr(env, name, None)):
                setattr(self, name, getattr(self, f"_{name}"))
        if isinstance(env, Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def __getattr__(self, name: str) -> Any:
        if name in ("tasks", "max_turns", "instructions", "reward_range", "splits"):
            return getattr(self._env, name)
        raise AttributeError(name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._seen, self._at, self._over = self._read(self._env.reset(task, seed)), Progress(), ""
        return self._observation()

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(self._over)
        at, role = self._at, self._at.role
        if role == "action":
            return self._act(action)
        text = " ".join(action.split())[:LONGEST] or NONE
        ends, completed = at.ends, at.completed
        if role == "subtask":
            ends = completed = False
            self._at = replace(at, role="action", subtask=text, progress=NONE, actions=[])
        elif at.ends:
            self._at = replace(at, role="subtask", ended=[*at.ended, at.subtask], progress=text, ends=False, completed=False)
        else:
            self._at = replace(at, role="action", progress=text)
        return Transition(self._observation(), info={"step": {"role": role, "ends": ends, "completed": completed}})

    def _act(self, action: str) -> Transition:
        """An action reaches the environment."""
        at, called = self._at, action.rstrip(" .").lower().endswith(DONE)
        plain = " ".join((action.rstrip(" .")[: -len(DONE)] if called else action).split())
        listed = {known.casefold(): known for known in self._seen.actions or ()}
        acted = listed.get(plain.casefold(), plain) if called else action
        found = read_transition(self._env.step(acted), self._env)
        self._seen, actions = self._read(found.observation), [*at.actions, plain]
        completed = called or (found.done and found.success)
        ends = called or found.done or len(actions) >= self._longest
        self._at = replace(at, role="progress", actions=actions, ends=ends, completed=completed)
        if found.done:
            self._over = "the episode is over: call reset(task) before the next step"
        step = {"role": "action", "ends": ends, "completed": completed}
        return replace(found, observation=self._observation(), info={**found.info, "step": step})

    def _observation(self) -> Observation:
        at, seen = self._at, self._seen
        if at.role == "subtask":
            lines = [f"Subtasks so far: {'; '.join(at.ended)[-LONGEST:] or NONE}", f"Last progress: {at.progress}"]
            return Observation("\n".join([*lines, seen.text, "Say the next subtask."]))
        lines = [f"Subtask: {at.subtask}", f"Progress: {at.progress}"]
        if at.role == "action":
            return Observation(
                "\n".join([*lines, seen.text, f'Say the next action. Write "{DONE}" behind the last one.']), (), seen.actions
            )
        return Observation("\n".join([*lines, f"Action: {at.actions[-1]}", seen.text, "Say the progress."]))

    def _read(self, answer: Any) -> Observation:
        seen = read_observation(answer, self._env)
        if seen.images:
            raise TurnwiseError("subtasks are shown as text: set observe to text, or leave out the option subtasks")
        if seen.seat:
            raise TurnwiseError("subtasks are for one player: choose a fixed opponent instead of self-play, or leave out subtasks")
        return seen

    def close(self) -> None:
        if callable(closing := getattr(self._env, "close", None)):
            closing()
        self._over = "the environment was closed: call reset(task) first"

    def _expert(self, task: Task) -> list[str]:
        plan, found = [str(act) for act in self._env.expert(task)], list[str]()
        size = min(AHEAD, self._longest)
        for first in range(0, len(plan), size):
            chunk = plan[first : first + size]
            found.append(chunk[-1])
            for k, act in enumerate(chunk):
                found += [act + DONE if k == len(chunk) - 1 else act, ", ".join(chunk[: k + 1])]
        return found[:-1]  # the last action ends the attempt

    def _expert_action(self) -> str | None:
        at = self._at
        if at.role == "progress":
            return ", ".join(at.actions[-AHEAD:])
        act = self._env.expert_action() if at.role == "action" else ahead(self._env, min(AHEAD, self._longest))
        return None if act is None else f"{act}{DONE}" if at.role == "action" and act == at.subtask else str(act)

    def _snapshot(self) -> bytes | None:
        if self._over:
            raise EpisodeOver(self._over)
        if (state := read_snapshot(self._env.snapshot(), self._env)) is None:
            return None
        at = {name: getattr(self._at, name) for name in Progress.__dataclass_fields__}
        return pack("subtasks", {"at": at, "state": b64encode(state).decode()}, {"subtasks": self._longest})

    def _restore(self, state: bytes) -> Observation:
        kept = unpack(state, "subtasks", {"subtasks": self._longest})
        with restoring("subtasks"):
            inner, at = b64decode(kept["state"]), Progress(**kept["at"])
        self._seen, self._at, self._over = self._read(self._env.restore(inner)), at, ""
        return self._observation()
