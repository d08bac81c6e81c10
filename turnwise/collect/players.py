"""Players that need no model: random, expert and scripted. They put a score into perspective, test an environment, and make the examples
of a warm start.

A player chooses an action directly, so it replaces the context, engine and parser of a model: the collector calls `act` with the
observation and the situation. A player keeps no state between calls, so attempts may run concurrently in any order.

The expert lives inside the environment, which may run in another process. `Advised` makes it reachable through `step` without another
channel: in the environment's process the action `ASK_EXPERT` is replaced by what the expert would do, and the transition's
`info["action"]` holds that action. In the same way `ASK_RULE` stands for its `scripted_action()`, and `ASK_RANDOM` with a number for its
`random_action(number)`. Play it with `Pool(Advised(portable(name, options)), size)` or `Pool(Advised(MyEnv), size)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from turnwise.collect.collector import Answer, Start
from turnwise.data.rollouts import Stop, Turn
from turnwise.data.tasks import Task
from turnwise.envs import registry
from turnwise.envs.answers import read_observation, read_transition
from turnwise.envs.base import Observation, Transition, without
from turnwise.envs.capabilities import Capabilities
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive

ASK_EXPERT, ASK_RULE, ASK_RANDOM = "\x00expert", "\x00rule", "\x00random "  # no environment has such actions
NO_ADVICE, NO_EXPERT = "the expert has no advice", "there is no expert"


class NoAdvice(TurnwiseError):
    """The expert was asked in a state from which the task cannot be solved any more, or in one that it does not know."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What an action is wanted for: the task, the seed of the attempt, and the turn, counted from 0."""

    task: Task
    seed: int
    turn: int


class Player(Protocol):
    """Chooses actions. None means that there is nothing left to do, and the attempt ends."""

    def act(self, observation: Observation, situation: Situation) -> str | None: ...


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Any of the admissible actions, all equally likely. The choice is a hash of seed and turn, so it does not depend on the order of
    attempts or on other attempts. If no actions are listed and it `asks`, the environment's `random_action` makes one."""

    asks: bool = False

    def act(self, observation: Observation, situation: Situation) -> str | None:
        if observation.actions is None and self.asks:
            return f"{ASK_RANDOM}{derive(situation.seed, 'random player', situation.turn)}"
        if observation.actions is None:
            raise TurnwiseError(
                "the random player needs an environment that lists its admissible actions (Observation.actions) or has random_action()"
            )
        if not observation.actions:
            return None
        return observation.actions[derive(situation.seed, "random player", situation.turn) % len(observation.actions)]


@dataclass(frozen=True, slots=True)
class ExpertPlayer:
    """What the environment's expert would do. With `noise`, this share of the turns is a random admissible action instead, so that
    examples show how to recover from a mistake. For that the environment's expert must advise from any state (`expert_action`). If no
    actions are listed and it `asks`, the environment's `random_action` makes one."""

    noise: float = 0.0
    hidden: Sequence[str] = ()  # patterns of listed actions that random turns never take
    asks: bool = False

    def act(self, observation: Observation, situation: Situation) -> str | None:
        noisy = self.noise > 0 and derive(situation.seed, "expert noise", situation.turn) < self.noise * 2**63
        if noisy and (allowed := without(observation.actions or (), self.hidden)):
            return RandomPlayer().act(replace(observation, actions=allowed), situation)
        if noisy and observation.actions is None and self.asks:
            return RandomPlayer(asks=True).act(observation, situation)
        return ASK_EXPERT


@dataclass(frozen=True, slots=True)
class RulePlayer:
    """What the environment's `scripted_action()` says: a simple rule that sees no more than an agent."""

    def act(self, observation: Observation, situation: Situation) -> str | None:
        return ASK_RULE


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """The actions of a list, one per turn."""

    actions: Sequence[str]

    def act(self, observation: Observation, situation: Situation) -> str | None:
        return self.actions[situation.turn] if situation.turn < len(self.actions) else None


@dataclass(frozen=True, slots=True)
class Advised:
    """Makes environments that understand `ASK_EXPERT`. It is a class and not a closure, so that it can be sent to worker processes."""

    factory: Callable[[], Any]
    plan_first: bool = False
    required: bool = True

    def __call__(self) -> AdvisedEnv:
        return AdvisedEnv(self.factory(), self.plan_first, self.required)


class AdvisedEnv:
    """An environment together with its expert; everything else is passed on to the environment. If it has both, its advice is used, or
    with `plan_first` its plan. `info["words"]` is what an expert with `expert_words()` says before an action. Without an expert it raises
    an error, unless none is `required`: then there is never any advice."""

    def __init__(self, env: Any, plan_first: bool = False, required: bool = True):
        self._env = env
        self._played: list[str] = []
        self._planned: tuple[tuple[str, str], list[str]] | None = None  # kept for the next attempt at the same task: plans can be expensive
        can = Capabilities(env)
        self._advises, plans = can.expert_action is not None, can.expert is not None
        self._follows_plan = plans and (plan_first or not self._advises)
        self._speaks = can.expert_words is not None
        if required and not (self._advises or plans):
            raise TurnwiseError(f"{type(env).__name__} has no expert: it needs expert(task) or expert_action()")

    def __getattr__(self, name: str) -> Any:
        if name in ("snapshot", "restore"):  # the environment's own would not know how much of the plan was followed
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._played = []
        if self._follows_plan and (self._planned is None or self._planned[0] != (task.split, task.id)):
            self._planned = ((task.split, task.id), [str(action) for action in self._env.expert(task)])
        return read_observation(self._env.reset(task, seed), self._env)

    def step(self, action: str) -> Transition:
        words = self._env.expert_words() if self._speaks else ""
        if action == ASK_EXPERT:
            action = self._advice()
        elif action == ASK_RULE:
            action = str(self._env.scripted_action())
        elif action.startswith(ASK_RANDOM):
            action = str(self._env.random_action(int(action.removeprefix(ASK_RANDOM))))
        transition = read_transition(self._env.step(action), self._env)
        self._played.append(action)
        return replace(transition, info={**transition.info, "action": action} | ({"words": words} if words else {}))

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


def offers(name: str, options: dict[str, Any], *methods: str) -> bool:
    """Whether the environment has one of these optional methods."""
    env = registry.make(name, **options)
    try:
        return any(Capabilities(env).method(method) for method in methods)
    finally:
        registry.close(env)


PLAYERS: dict[str, type[RandomPlayer] | type[RulePlayer] | type[ExpertPlayer]] = {
    "random": RandomPlayer,
    "scripted": RulePlayer,
    "expert": ExpertPlayer,
}


def player(name: str, env: str, options: dict[str, Any]) -> Player:
    """A player by name, for an environment that must have what it plays by."""
    if name not in PLAYERS:
        raise unknown_name("agent", name, PLAYERS)
    if name == "expert" and not offers(env, options, "expert", "expert_action"):
        raise TurnwiseError(f"environment {env!r} has no expert: it needs expert(task) or expert_action()")
    if name == "scripted" and not offers(env, options, "scripted_action"):
        raise TurnwiseError(f"environment {env!r} has no scripted player: it needs scripted_action()")
    return RandomPlayer(asks=offers(env, options, "random_action")) if name == "random" else PLAYERS[name]()


def advised(factory: Callable[[], Any], player: Player) -> Callable[[], Any]:
    """The environments for a player: those that can be asked for an action, unless it chooses from a list."""
    return factory if isinstance(player, RandomPlayer) and not player.asks else Advised(factory, required=isinstance(player, ExpertPlayer))


@dataclass(slots=True)
class Attempt:
    """The attempt in one slot."""

    start: Start
    observation: Observation
    turn: int = 0


@dataclass
class PlayerPolicy:
    """Asks a player for every action. An action that the environment chooses is known only when it was played: it is filled in then."""

    player: Player

    def __post_init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self._ready: list[Answer] = []

    @property
    def pending(self) -> int:
        return len(self._ready)

    def begin(self, slot: int, start: Start, observation: Observation) -> None:
        self._attempts[slot] = Attempt(start, observation)

    def ask(self, slot: int) -> None:
        attempt = self._attempts[slot]
        action = self.player.act(attempt.observation, Situation(attempt.start.task, attempt.start.policy_seed, attempt.turn))
        if action is None:
            self._ready.append(Answer(slot, None, Stop.CANCELLED, "the player had nothing more to do"))
        else:
            self._ready.append(Answer(slot, Turn(None, action=action, response=action)))

    def answers(self, wait: bool = True) -> list[Answer]:
        ready, self._ready = self._ready, []
        return ready

    def observe(self, slot: int, turn: Turn, transition: Transition) -> None:
        if turn.action in (ASK_EXPERT, ASK_RULE) or turn.action.startswith(ASK_RANDOM):
            turn.action = turn.response = str(transition.info.get("action", ""))
        attempt = self._attempts[slot]
        attempt.observation, attempt.turn = transition.observation, attempt.turn + 1

    def retrace(self, slot: int, turn: Turn, transition: Transition) -> str:
        self.observe(slot, turn, transition)
        return ""

    def end(self, slot: int) -> None:
        self._attempts.pop(slot, None)
