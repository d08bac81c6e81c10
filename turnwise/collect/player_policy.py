"""Players as policies: random, expert and scripted agents go through the same collector as models."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.collect.collector import Answer, Start
from turnwise.collect.players import ASK_EXPERT, ExpertPlayer, Player, RandomPlayer, Situation
from turnwise.data.rollouts import Stop, Turn
from turnwise.envs.base import Observation, Transition
from turnwise.util.errors import unknown_name

PLAYERS: dict[str, type[RandomPlayer] | type[ExpertPlayer]] = {"random": RandomPlayer, "expert": ExpertPlayer}


def player(name: str) -> Player:
    """A player by name."""
    if name not in PLAYERS:
        raise unknown_name("agent", name, PLAYERS)
    return PLAYERS[name]()


@dataclass
class PlayerPolicy:
    """Asks a player for every action. The expert's action is known only when the environment has played it: it is filled in then."""

    player: Player

    def __post_init__(self) -> None:
        self._starts: dict[int, Start] = {}
        self._seen: dict[int, Observation] = {}
        self._turns: dict[int, int] = {}
        self._ready: list[Answer] = []

    @property
    def pending(self) -> int:
        return len(self._ready)

    def begin(self, slot: int, start: Start, observation: Observation) -> None:
        self._starts[slot], self._seen[slot], self._turns[slot] = start, observation, 0

    def ask(self, slot: int) -> None:
        start = self._starts[slot]
        action = self.player.act(self._seen[slot], Situation(start.task, start.policy_seed, self._turns[slot]))
        if action is None:
            self._ready.append(Answer(slot, None, Stop.CANCELLED, "the player had nothing more to do"))
        else:
            self._ready.append(Answer(slot, Turn(None, action=action, response=action)))

    def answers(self, wait: bool = True) -> list[Answer]:
        ready, self._ready = self._ready, []
        return ready

    def observe(self, slot: int, turn: Turn, transition: Transition) -> None:
        if turn.action == ASK_EXPERT:
            turn.action = turn.response = str(transition.info.get("action", ""))
        self._seen[slot], self._turns[slot] = transition.observation, self._turns[slot] + 1

    def retrace(self, slot: int, turn: Turn, transition: Transition) -> str:
        self.observe(slot, turn, transition)
        return ""

    def end(self, slot: int) -> None:
        for kept in (self._starts, self._seen, self._turns):
            kept.pop(slot, None)
