"""The expert's advice next to every transition, for stages that compare an action with it (`needs=("env.expert_action",)`).

`info["expert"]` of a transition has what the environment's expert said before the action was played: `action`, its own choice, and, if the
environment has `expert_distance()`, `left` and `then`, the number of actions to the goal before and after. None where the expert knows
nothing, or where the goal cannot be reached any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_transition
from turnwise.envs.base import Observation, Transition
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True, slots=True)
class Advising:
    """Makes environments that report their expert's advice. It can be sent to worker processes."""

    factory: Callable[[], Any]

    def __call__(self) -> AdvisingEnv:
        return AdvisingEnv(self.factory())


class AdvisingEnv:
    """An environment that reports its expert's advice; all else is the environment's own."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # asked before __init__ has run: while it is copied
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        return read_observation(self._env.reset(task, seed), self._env)

    def step(self, action: str) -> Transition:
        advice, left = self._ask("expert_action"), self._ask("expert_distance")
        transition = read_transition(self._env.step(action), self._env)
        then = (0 if transition.success else None) if transition.done else self._ask("expert_distance")
        said = {"action": advice} | ({"left": left, "then": then} if hasattr(self._env, "expert_distance") else {})
        return replace(transition, info={**transition.info, "expert": said})

    def _ask(self, method: str) -> Any:
        """What the expert says; None if it has no such method or no advice."""
        try:
            asked = getattr(self._env, method, None)
            return asked() if callable(asked) else None
        except TurnwiseError:
            return None
