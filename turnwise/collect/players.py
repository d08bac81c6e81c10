"""Players that need no model: random, expert and scripted. They tell what a score is worth, test an environment, and make the examples
of a warm start.

A player finds an action directly, so it stands where context, engine and parser stand for a model: the collector asks `act` with the
observation and the place it is in. A player keeps nothing between calls, so attempts may run side by side in any order.

The expert lives inside the environment, which may run in another process. `Advised` puts it within reach of `step` without another
channel: the action `ASK_EXPERT` is replaced, where the environment is, by what its expert would do, and the transition's
`info["action"]` says what that was. Play it with `Pool(Advised(portable(name, options)), size)` or `Pool(Advised(MyEnv), size)`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import Observation, Restorable, Transition, without
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

ASK_EXPERT = "\x00expert"  # no environment has such an action
NO_ADVICE, NO_EXPERT = "the expert has no advice", "there is no expert"


class NoAdvice(TurnwiseError):
    """The expert was asked where nothing can be won any more, or where it does not know its way."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Where in a run an action is wanted: the task, the seed of the attempt's own chance, and the turn, counted from 0."""

    task: Task
    seed: int
    turn: int


class Player(Protocol):
    """Finds actions. None: there is nothing more to do, and the attempt ends."""

    def act(self, observation: Observation, situation: Situation) -> str | None: ...


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Any of the admissible actions, each as likely. Its chance is a hash of seed and turn: no order and no other attempt changes it."""

    def act(self, observation: Observation, situation: Situation) -> str | None:
        if observation.actions is None:
            raise TurnwiseError("the random player needs an environment that lists its admissible actions (Observation.actions)")
        if not observation.actions:
            return None
        return observation.actions[derive(situation.seed, "random player", situation.turn) % len(observation.actions)]


@dataclass(frozen=True, slots=True)
class ExpertPlayer:
    """What the environment's expert would do. With `noise`, this part of the turns is any admissible action instead, so that examples
    show how to come back from a mistake; for that the environment's expert must advise from any state (`expert_action`)."""

    noise: float = 0.0
    hidden: Sequence[str] = ()  # what chance never does, as patterns

    def act(self, observation: Observation, situation: Situation) -> str | None:
        noisy = self.noise > 0 and derive(situation.seed, "expert noise", situation.turn) < self.noise * 2**63
        if noisy and (allowed := without(observation.actions or (), self.hidden)):
            return RandomPlayer().act(replace(observation, actions=allowed), situation)
        return ASK_EXPERT


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """The actions of a list, one a turn; or of a list for each task, by the task's id."""

    actions: Sequence[str] | Mapping[str, Sequence[str]] = field(default=())

    def act(self, observation: Observation, situation: Situation) -> str | None:
        script = self.actions
        if isinstance(script, Mapping):
            if situation.task.id not in script:
                raise TurnwiseError(f"the script has no actions for task {situation.task.id!r}; it knows {len(script)} tasks")
            script = script[situation.task.id]
        return script[situation.turn] if situation.turn < len(script) else None


@dataclass(frozen=True, slots=True)
class Advised:
    """Makes environments that understand `ASK_EXPERT`. A function of its own kind, so that it can be sent to worker processes."""

    factory: Callable[[], Any]
    plan_first: bool = False
    required: bool = True

    def __call__(self) -> AdvisedEnv:
        return AdvisedEnv(self.factory(), self.plan_first, self.required)


class AdvisedEnv:
    """An environment together with its expert; all else is the environment's own. Where it has both, its advice counts, with `plan_first`
    its plan. Without an expert it is an error, unless none is `required`: then there is never any advice."""

    def __init__(self, env: Any, plan_first: bool = False, required: bool = True):
        self._env = env
        self._played: list[str] = []
        self._planned: tuple[tuple[str, str], list[str]] | None = None  # kept for the next attempt at the same task: plans can be dear
        self._advises, plans = (callable(getattr(env, name, None)) for name in ("expert_action", "expert"))
        self._follows_plan = plans and (plan_first or not self._advises)
        if required and not (self._advises or plans):
            raise TurnwiseError(f"{type(env).__name__} has no expert: it needs expert(task) or expert_action()")
        if isinstance(env, Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._played = []
        if self._follows_plan and (self._planned is None or self._planned[0] != (task.split, task.id)):
            self._planned = ((task.split, task.id), [str(action) for action in self._env.expert(task)])
        return read_observation(self._env.reset(task, seed), self._env)

    def step(self, action: str) -> Transition:
        if action == ASK_EXPERT:
            action = self._advice()
        transition = read_transition(self._env.step(action), self._env)
        self._played.append(action)
        return replace(transition, info={**transition.info, "action": action})

    def _snapshot(self) -> bytes | None:
        """The environment's own snapshot, and how far its expert's plan was followed."""
        if (inner := read_snapshot(self._env.snapshot(), self._env)) is None:
            return None
        return pack("advised", {"played": self._played, "planned": self._planned, "state": b64encode(inner).decode()})

    def _restore(self, state: bytes) -> Observation:
        kept = unpack(state, "advised")
        with restoring("advised"):
            inner, played, plan = b64decode(kept["state"]), list(map(str, kept["played"])), kept["planned"]
            planned = None if plan is None else ((str(plan[0][0]), str(plan[0][1])), list(map(str, plan[1])))
        seen = read_observation(self._env.restore(inner), self._env, "restore")
        self._played, self._planned = played, planned
        return seen

    def _advice(self) -> str:
        if self._planned is not None:
            plan, turn = self._planned[1], len(self._played)
            advice = plan[turn] if plan[:turn] == self._played and turn < len(plan) else None
        elif self._advises:
            advice = self._env.expert_action()
        else:
            raise NoAdvice(f"{NO_EXPERT}: {type(self._env).__name__} has neither expert(task) nor expert_action()")
        if advice is None:
            raise NoAdvice(f"{NO_ADVICE} after {len(self._played)} turns of this task")
        return str(advice)
