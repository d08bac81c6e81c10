"""What an expert is after: its next actions, and a subgoal that it keeps or switches, for warm starts that teach to name one.

Any environment whose expert advises from every state (`expert_action`) takes the option `subgoals`, the number of the expert's actions per
subgoal, as in `make("household", subgoals=3)`. It then has `expert_words()`, which a warm start writes in front of an action:

    <switch>SWITCH</switch><subgoal>take the key</subgoal>       a subgoal is reached, or the first one is named
    <switch>KEEP</switch><subgoal>take the key</subgoal>         it is not reached yet

A subgoal is named by the last of the expert's next actions, and reached when this action is played. One that takes twice as many actions as
it should is given up. All else is the environment's own.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import Observation, Restorable, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError

WORDS = "<switch>{}</switch><subgoal>{}</subgoal>"


@dataclass(frozen=True, slots=True)
class Subgoals:
    """Makes environments whose expert names its subgoals. It can be sent to worker processes."""

    factory: Callable[[], Any]
    actions: int

    def __post_init__(self) -> None:
        if isinstance(self.actions, bool) or not isinstance(self.actions, int) or self.actions < 0:
            raise TurnwiseError(f"subgoals is the number of the expert's actions per subgoal (0: none), not {self.actions!r}")

    def __call__(self) -> Any:
        env = self.factory()
        return SubgoalsEnv(env, self.actions) if self.actions and callable(getattr(env, "expert_action", None)) else env


class SubgoalsEnv:
    """An environment whose expert names its subgoals; all else is the environment's own."""

    def __init__(self, env: Any, actions: int):
        self._env, self._most = env, actions
        self._subgoal, self._named, self._acted = "", False, 0  # named: before the last action, or earlier
        if isinstance(env, Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # asked before __init__ has run: while it is copied
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._subgoal, self._named, self._acted = "", False, 0
        return read_observation(self._env.reset(task, seed), self._env)

    def step(self, action: str) -> Transition:
        self._named, self._acted = bool(self._subgoal), self._acted + 1
        if action == self._subgoal or self._acted >= 2 * self._most:
            self._subgoal, self._named, self._acted = "", False, 0
        return read_transition(self._env.step(action), self._env)

    def expert_words(self) -> str:
        """The subgoal, kept or switched; empty where the expert has no advice."""
        if not self._subgoal:
            self._subgoal, self._acted = ahead(self._env, self._most) or "", 0
        return WORDS.format("KEEP" if self._named else "SWITCH", self._subgoal) if self._subgoal else ""

    def _snapshot(self) -> bytes | None:
        if (state := read_snapshot(self._env.snapshot(), self._env)) is None:
            return None
        at = [self._subgoal, self._named, self._acted]
        return pack("subgoals", {"at": at, "state": b64encode(state).decode()}, {"subgoals": self._most})

    def _restore(self, state: bytes) -> Observation:
        kept = unpack(state, "subgoals", {"subgoals": self._most})
        with restoring("subgoals"):
            inner, (subgoal, named, acted) = b64decode(kept["state"]), kept["at"]
        seen = read_observation(self._env.restore(inner), self._env, "restore")
        self._subgoal, self._named, self._acted = str(subgoal), bool(named), int(acted)
        return seen


def ahead(env: Any, actions: int) -> str | None:
    """The last of the expert's next actions; the next one where the environment cannot return to this state."""
    act = last = env.expert_action()
    state = read_snapshot(env.snapshot(), env) if isinstance(env, Restorable) else None
    for _ in range(actions - 1 if state is not None and act is not None else 0):
        if read_transition(env.step(act), env).done or (act := env.expert_action()) is None:
            break
        last = act
    if state is not None:
        env.restore(state)
    return None if last is None else str(last)
