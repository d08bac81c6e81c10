"""Players as policies: random, scripted and expert agents go through the same collector as models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnwise.collect.collector import Answer, Start
from turnwise.collect.players import (
    ASK_EXPERT,
    ASK_RANDOM,
    ASK_RULE,
    Advised,
    ExpertPlayer,
    Player,
    RandomPlayer,
    RulePlayer,
    Situation,
)
from turnwise.collect.warmstart import offers
from turnwise.data.rollouts import Stop, Turn
from turnwise.envs.base import Observation, Transition
from turnwise.util.errors import TurnwiseError, unknown_name

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
