"""Several copies of a task in one attempt: the agent sees all of them and says one action per copy.

Any text environment takes the option `parallel`, as in `make("household", parallel=4)`. An action is written `1: go to desk 1; 2: look`,
one part per copy, or `<env_1> go to desk 1 </env_1>`. A copy that is not named waits. The attempt is won, and over, when one copy wins; it
is lost when all copies are over. The reward of a turn is the largest of the copies that acted. `info["acts"]` has the actions by copy.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Restorable, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError

MOST = 64
TASK = "There are {n} copies of this task, and one of them has to be solved. Say one action for each copy, such as {example}"
PARTS = re.compile(r"(?:^|[;\n])\s*(?:copy\s+)?(\d+)\s*:\s*([^;\n]+)", re.IGNORECASE)
TAGS = re.compile(r"<env_(\d+)>(.*?)</env_\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Makes environments with several copies of one. It can be sent to worker processes."""

    factory: Callable[[], Any]
    copies: int

    def __post_init__(self) -> None:
        if isinstance(self.copies, bool) or not isinstance(self.copies, int) or not 1 <= self.copies <= MOST:
            raise TurnwiseError(f"parallel is the number of copies, from 1 to {MOST}, not {self.copies!r}")

    def __call__(self) -> Any:
        return self.factory() if self.copies == 1 else ParallelEnv([self.factory() for _ in range(self.copies)])


class ParallelEnv:
    """Copies of one environment, played at once. Tasks, limits and instructions are those of one copy."""

    def __init__(self, envs: list[Any]):
        self._envs = envs
        self._seen: list[Observation | None] = []  # by copy; None: this one is over
        self._over = "step() was called before reset(): call reset(task) first"
        for name in ("expert", "expert_action"):
            if callable(getattr(envs[0], name, None)):
                setattr(self, name, getattr(self, f"_{name}"))
        if isinstance(envs[0], Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def __getattr__(self, name: str) -> Any:
        if name in ("tasks", "max_turns", "instructions", "reward_range", "splits"):
            return getattr(self._envs[0], name)
        raise AttributeError(name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._seen = [_text_only(read_observation(env.reset(task, seed), env)) for env in self._envs]
        self._over = ""
        return self._observation()

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(self._over)
        acts = {copy: act for copy, act in acts_of(action, len(self._envs)).items() if self._seen[copy - 1] is not None}
        found = {copy: read_transition(self._envs[copy - 1].step(act), self._envs[copy - 1]) for copy, act in acts.items()}
        last = [f"{n}: {_text_only(transition.observation).text}" for n, transition in found.items() if transition.done]
        for copy, transition in found.items():
            self._seen[copy - 1] = None if transition.done else _text_only(transition.observation)
        won = any(transition.done and transition.success for transition in found.values())
        done = won or not any(self._seen)
        if done:
            self._over = "the episode is over: call reset(task) before the next step"
        reward = max((transition.reward for transition in found.values()), default=0.0)
        return Transition(self._observation("\n".join(last)), reward, done, won, {"acts": {str(copy): act for copy, act in acts.items()}})

    def _observation(self, ended: str = "") -> Observation:
        n = len(self._envs)
        example = "; ".join(f"{copy}: ACTION" for copy in (1, 2)) + (" …" if n > 2 else "")
        parts = [f"Copy {copy}:\n{seen.text if seen else 'It is over.'}" for copy, seen in enumerate(self._seen, 1)]
        text = "\n\n".join([TASK.format(n=n, example=example), *parts, *([ended] if ended else [])])
        from turnwise.data.anchors import digest  # with numpy, which most processes of environments do not need

        keys = b"".join(digest(seen.key) if seen else bytes(16) for seen in self._seen)
        return Observation(text, anchor=blake2b(keys, digest_size=16).digest())

    def close(self) -> None:
        for env in self._envs:
            if callable(closing := getattr(env, "close", None)):
                closing()
        self._over = "the environment was closed: call reset(task) first"

    def _expert(self, task: Task) -> list[str]:
        return [self._joined(dict.fromkeys(range(1, len(self._envs) + 1), str(act))) for act in self._envs[0].expert(task)]

    def _expert_action(self) -> str | None:
        """What the expert would do in each copy that is not over."""
        said = {copy: env.expert_action() for copy, env in enumerate(self._envs, 1) if self._seen[copy - 1] is not None}
        return self._joined({copy: str(act) for copy, act in said.items() if act is not None}) or None

    def _joined(self, acts: dict[int, str]) -> str:
        return "; ".join(f"{copy}: {act}" for copy, act in acts.items())

    def _snapshot(self) -> bytes | None:
        if self._over:
            raise EpisodeOver(self._over)
        states = [read_snapshot(env.snapshot(), env) if seen else b"" for env, seen in zip(self._envs, self._seen, strict=True)]
        if any(state is None for state in states):
            return None
        return pack("parallel", {"states": [b64encode(state or b"").decode() for state in states]}, {"copies": len(self._envs)})

    def _restore(self, state: bytes) -> Observation:
        kept = unpack(state, "parallel", {"copies": len(self._envs)})
        with restoring("parallel"):
            states = [b64decode(one) for one in kept["states"]]
            pairs = list(zip(self._envs, states, strict=True))
        self._seen = [_text_only(read_observation(env.restore(one), env, "restore")) if one else None for env, one in pairs]
        self._over = ""
        return self._observation()


def acts_of(action: str, copies: int) -> dict[int, str]:
    """The action for each copy that a text names; the last one counts if a copy is named twice."""
    found = TAGS.findall(action) or PARTS.findall(action)
    return {int(copy): act.strip() for copy, act in found if 1 <= int(copy) <= copies and act.strip()}


def _text_only(seen: Observation) -> Observation:
    if seen.images:
        raise TurnwiseError("copies of a task are shown as text: set observe to text, or leave out the option parallel")
    if seen.seat:
        raise TurnwiseError("copies of a task are for one player: choose a fixed opponent instead of self-play, or leave out parallel")
    return seen
