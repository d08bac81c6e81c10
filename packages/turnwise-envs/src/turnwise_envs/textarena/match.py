"""One match of a game of the package: its calls, what players see, its state and its result.

Everything that the package computes happens with the game's own dice. The raw variants of games are used: they say only what is new to a
player, as messages with a kind.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np

from turnwise.config.addons import DISTRIBUTION
from turnwise.util.errors import TurnwiseError, install_command
from turnwise_envs.textarena.dice import Dice
from turnwise_envs.textarena.moves import MOST, PROBED, at_most, moves_of
from turnwise_envs.textarena.table import Game

LONGEST = 2000  # characters of an action that a game sees
COUNTERS = frozenset({"move_count", "moves_made", "num_turns", "turn", "rendered_board", "board_state", "halfmove_clock", "rep_counter"})
HISTORIES = frozenset({"history", "guess_history", "move_log", "round_history", "trade_history"})  # in any order, they are one state


class Match:
    """A match. `broken` is what the package raised, if it did: the match is then over."""

    def __init__(self, game: Game, name: str, players: int, seed: int):
        self.game, self.players, self.over, self.broken = game, players, False, ""
        self._dice = Dice(seed)
        self._moves: dict[int, tuple[str, ...]] = {}
        with self._dice.held():
            self.env = _made(game, name)
            self.env.reset(num_players=players, seed=seed)

    @property
    def mover(self) -> int:
        """The player who is to move."""
        return int(self.env.state.current_player_id)

    def throw(self, seed: int) -> None:
        """Chance from here on."""
        self._dice = Dice(seed, _uses_numpy(type(self.env).__module__))

    def stop(self, why: str) -> None:
        """The match is over, without a result."""
        self.over, self.broken = True, why

    def ask(self, rule: Callable[[Any], str | None]) -> str | None:
        """What a rule would do for the mover."""
        with self._dice.held(keep=False):
            return rule(self.env)

    def look(self, goal: str = "", again: bool = False) -> str:
        """What is new to the mover, as text: the rules at first, or `goal` instead, then what happened, and the last board. It is new only
        once, unless it will be looked at `again`."""
        own, waiting = self.mover, self.env.state.observations
        kept = list(waiting.get(self.mover, ()))
        with self._dice.held():
            _, messages = self.env.get_observation()
        if again:
            waiting[own] = kept
        text = shown(messages if isinstance(messages, list) else [(-1, str(messages), None)], own, self.game.talk, goal)
        self._find_moves(own, text)
        return text

    def _find_moves(self, own: int, text: str) -> None:
        with self._dice.held(keep=False):
            found = moves_of(self.game.family, self.env, text)
            if self.game.family in PROBED:
                found = at_most(self._allowed(found))
        self._moves[own] = found if found or self.game.family in PROBED else self._moves.get(own, ())

    @property
    def moves(self) -> tuple[str, ...]:
        """Moves of the mover, after `look`; none if they are not known."""
        return self._moves.get(self.mover, ())

    def play(self, text: str) -> bool:
        """The mover does what the text says. Returns whether that was a move: the game may answer that it was not, and ask again."""
        own = self.mover
        before = self._errors(self.env, own)
        with self._dice.held():
            try:
                done, _ = self.env.step(text[:LONGEST])
            except Exception as error:  # whatever a game raises at a text ends this match only
                done, self.broken = True, f"{type(error).__name__}: {error}"[:200]
        self.over = bool(done)
        return not self.broken and self._errors(self.env, own) <= before

    def _allowed(self, candidates: Iterable[str]) -> Iterator[str]:
        """Those that the game takes, tried on copies without their logs."""
        own, state = self.mover, self.env.state
        kept = state.logs, state.observations
        state.logs, state.observations = [], {player: [] for player in range(self.players)}
        try:
            plain = copy.deepcopy(self.env)
        finally:
            state.logs, state.observations = kept
        found = 0
        for text in candidates:
            trial = copy.deepcopy(plain)
            try:
                trial.step(text)
            except Exception:
                continue
            if self._errors(trial, own) <= self._errors(plain, own):
                found += 1
                yield text
            if found == MOST:
                return

    @staticmethod
    def _errors(env: Any, player: int) -> tuple[bool, int]:
        state = env.state
        said = state.game_info.get(player, {})
        return bool(said.get("invalid_move", False)), int(getattr(state, "error_count", 0))

    def rewards(self) -> dict[int, float]:
        """What each player got; 0 for those of whom the game says nothing, or anything but a number."""
        with self._dice.held():
            closed = self.env.close()
        given = closed[0] if isinstance(closed, tuple) else closed
        given = given if isinstance(given, Mapping) else {}
        found = {player: given.get(player) for player in range(self.players)}
        return {player: float(value) if isinstance(value, int | float) else 0.0 for player, value in found.items()}

    def reason(self) -> str:
        """Why it ended, in the game's words."""
        said = self.env.state.game_info
        return self.broken or next((str(own["reason"]) for own in said.values() if isinstance(own, Mapping) and own.get("reason")), "")

    def state(self) -> bytes:
        """A key of the state: whose turn it is, what the game calls its state, how many mistakes are left. No counters and no words."""
        state = self.env.state
        parts = [self.mover, getattr(state, "error_count", 0), canonical(state.game_state)]
        parts += [[name, canonical(getattr(self.env, name, None))] for name in self.game.attributes]
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def try_out(game: Game, name: str) -> None:
    """Raise the one line about a game that does not run here, before it is played. Nearly all games need nothing more."""
    if game.needs:
        _made(game, name)


def _made(game: Game, name: str) -> Any:
    """The package's object. Games that print are silent, and what is missing is one line."""
    try:
        textarena = import_module("textarena")
    except ImportError as error:
        raise TurnwiseError(f"environment 'textarena' needs its package: {install_command('textarena', DISTRIBUTION)} ({error})") from None
    try:
        env = textarena.make(f"{name}-raw")
    except Exception as error:
        why = f"It needs {game.needs}" if game.needs else f"{type(error).__name__}: {error}"
        raise TurnwiseError(f"textarena: {name} does not run here. {why}") from None
    _uses_numpy(type(env).__module__)
    return env


@cache
def _uses_numpy(module: str) -> bool:
    """Whether a game has numpy in its modules. From here on, they do not print."""
    room = module.rpartition(".")[0]
    rooms = [vars(own) for name, own in sys.modules.items() if name.startswith(room)]
    for names in rooms:
        names["print"] = _say_nothing
    return any(getattr(value, "__name__", "").partition(".")[0] == "numpy" for names in rooms for value in names.values())


def _say_nothing(*words: Any, **options: Any) -> None:
    """Instead of `print` in the modules of a game."""


def shown(messages: Iterable[Any], own: int, talk: bool, goal: str = "") -> str:
    """Messages as one text: without the player's own words, without those of others unless the game is about talk, and with the last board
    only. The rules are one line that states the task, so that every prompt can repeat it."""
    kinds = [_read(one) for one in messages]
    boards = [number for number, (_, _, kind) in enumerate(kinds) if kind == "GAME_BOARD"]
    lines = []
    for number, (who, text, kind) in enumerate(kinds):
        if kind == "GAME_BOARD" and number != boards[-1]:
            continue
        if kind == "PLAYER_ACTION" and (who == own or who < 0 or not talk):
            continue
        if kind == "PROMPT":
            text = goal or f"Your task is: {' '.join(text.split())}"
        lines.append(f"Player {who}: {text}" if who >= 0 else text)
    return "\n".join(line for line in lines if line)


def _read(message: Any) -> tuple[int, str, str]:
    """Sender, text and kind of a message. Some games mix up the order of sender and kind."""
    who, text, kind = (*message, None, None)[:3]
    if isinstance(who, Enum):
        who, kind = kind, who
    return who if isinstance(who, int) else -1, str(text).strip(), getattr(kind, "name", "")


def canonical(value: Any, depth: int = 8) -> Any:
    """A value as lists, numbers and texts, the same in every process: sets are sorted, objects are their fields. Counters are left out."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if depth == 0 or callable(value):
        return type(value).__name__
    if isinstance(value, Mapping):
        named = [(canonical(key, depth - 1), _field(key, inner, depth)) for key, inner in value.items() if key not in COUNTERS]
        return sorted(named, key=repr)
    if isinstance(value, set | frozenset):
        return sorted((canonical(inner, depth - 1) for inner in value), key=repr)
    if isinstance(value, list | tuple):
        return [canonical(inner, depth - 1) for inner in value]
    if callable(fen := getattr(value, "fen", None)):
        return str(fen()).split()[:4]  # a chess board without its counters
    return [type(value).__name__, canonical(getattr(value, "__dict__", {}), depth - 1)]


def _field(key: Any, inner: Any, depth: int) -> Any:
    found = canonical(inner, depth - 1)
    return sorted(found, key=repr) if key in HISTORIES and isinstance(found, list) else found
