"""The games of textarena as an environment: alone, against others, or against oneself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Share, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.textarena.match import Match, try_out
from turnwise_envs.textarena.opponents import RANDOM, SELF, Opponent, check_kind, opponent
from turnwise_envs.textarena.solvers import EXPERTS, RULES
from turnwise_envs.textarena.table import Game, find

SPLITS = {"train": 0, "valid": 1, "test": 2}
SIZE = 100_000  # tasks of a split if no number is asked for
STUCK = 50  # moves in a row that an opponent may make: more is a game that does not continue
NOT_BEGUN = "step() was called before reset(): call reset(task) first"


@dataclass
class Playing:
    """A match that is being played. `moves` are all texts so far, of all players; `refused` those of the agent that were not moves."""

    task: Task
    seed: int
    match: Match
    opponents: dict[int, Opponent]
    shared: bool
    seat: int
    opening: int
    moves: list[str] = field(default_factory=list)
    refused: int = 0

    def mine(self, player: int) -> bool:
        """Whether a player is the agent: all of them are in self-play."""
        return self.shared or player == self.seat


class TextArenaEnv:
    """Games of textarena. An action is what the game reads, such as `[4]`; brackets may be left out in games on a board.

    `game`: a family (`Nim`) or an id of the package (`Nim-v0-large`), or several. `opponent` plays the other seats: "random", "expert" or
    "scripted", where the game has one, "self" for the policy itself, or the address of an OpenAI-style server, with `model` and the name of
    the environment variable with its key. In self-play, tasks of other splits than train are played against `eval_opponent`. `noise` is the
    share of random moves of an expert or rule. `players`: how many play; `seat`: which one is the agent (default: each in turn). `opening`:
    random moves before the game begins, drawn by the task. `rewards`: "unit" is 1, 0.5 or 0 for a win, a draw or a loss, "sign" is 1, 0
    or −1; a game for one gives what the package says. `rules`: whether the first observation has the rules, or names the game only.
    """

    max_turns: int = 50

    def __init__(
        self,
        game: str | Sequence[str] = "TicTacToe",
        opponent: str = RANDOM,
        eval_opponent: str = RANDOM,
        noise: float = 0.0,
        players: int | None = None,
        seat: int | None = None,
        opening: int = 0,
        rewards: Literal["unit", "sign"] = "unit",
        rules: bool = True,
        anchor: Literal["state", "observation"] = "state",
        model: str = "",
        key_variable: str = "",
    ):
        chosen = [game] if isinstance(game, str) else list(game)
        if not chosen:
            raise TurnwiseError("textarena: game is empty; give one, as in game=TicTacToe")
        self.games = [find(name) for name in chosen]
        for what, value, known in (("rewards", rewards, ("unit", "sign")), ("anchor", anchor, ("state", "observation"))):
            if value not in known:
                raise unknown_name(f"{what} of the textarena environment:", str(value), known)
        if not 0 <= noise <= 1 or opening < 0:
            raise TurnwiseError(f"textarena: noise is from 0 to 1 and opening not negative, not {noise} and {opening}")
        for one, name in self.games:
            try_out(one, name)
            several = _players(one, players) > 1
            check_kind(opponent, "opponent", one.family, several)
            check_kind(eval_opponent, "eval_opponent", one.family, several and opponent == SELF)
        if eval_opponent == SELF:
            raise TurnwiseError('textarena: eval_opponent = "self" would compare the policy with itself: choose a fixed opponent')
        self.opponent, self.eval_opponent, self.noise, self.players, self.seat = opponent, eval_opponent, noise, players, seat
        self.opening, self.rewards, self.rules, self.anchor = opening, rewards, rules, anchor
        self.model, self.key_variable = model, key_variable
        self.max_turns = max(one.turns for one, _ in self.games)
        self._playing: Playing | None = None
        self._over = NOT_BEGUN
        for name, table, own in (("expert_action", EXPERTS, self._expert), ("scripted_action", RULES, self._rule)):
            if all(one.family in table for one, _ in self.games):
                setattr(self, name, own)

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks of a split: games in turn, and in each the seats in turn. A number belongs to one split only."""
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)

        def make(index: int) -> Task:
            game, name = self.games[index % len(self.games)]
            number = index // len(self.games) * len(SPLITS) + SPLITS[split]
            players = _players(game, self.players)
            data: dict[str, Any] = {"game": name, "number": number, "players": players, "task_type": game.family}
            if players > 1:
                data["opponent"] = self.eval_opponent if self.opponent == SELF and split != "train" else self.opponent
                data["opening"] = self.opening
                if data["opponent"] != SELF:
                    data["seat"] = index // len(self.games) % players if self.seat is None else self.seat
            seated = f"-seat{data['seat']}" if "seat" in data else ""
            return Task(f"{name}-{number}{seated}", split, data)

        return TaskSet.lazy(SIZE if n is None else n, make, f"textarena {split}")

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        for opening in range(int(task.data.get("opening", 0)), -1, -1):  # an opening that leaves the agent nothing to do is too long
            now = self._begun(task, seed, opening)
            self._continue(now)
            if not now.match.over:
                break
        else:
            raise TurnwiseError(f"textarena: task {task.id!r} was over before its first turn: {now.match.reason()}")
        self._playing, self._over = now, ""
        return self._see(now)

    def _begun(self, task: Task, seed: int, opening: int) -> Playing:
        """A match at its beginning, opening moves included."""
        with restoring("textarena"):
            name, number, players = str(task.data["game"]), int(task.data["number"]), int(task.data["players"])
            kind, seat = str(task.data.get("opponent", RANDOM)), int(task.data.get("seat", 0))
        game, name = find(name)
        if seat >= players:
            raise TurnwiseError(f"textarena: task {task.id!r} is for seat {seat}, and {players} play: seats are 0 to {players - 1}")
        shared = players == 1 or kind == SELF
        others = {} if shared else {k: opponent(kind, self.noise, self.model, self.key_variable) for k in range(players) if k != seat}
        match = Match(game, name, players, derive(0, "textarena", name, number))
        match.throw(derive(seed, "textarena", name, number))
        now = Playing(task, seed, match, others, shared, seat, opening)
        for place in range(opening):
            match.look(again=True)
            if match.over or not match.moves:
                break
            self._play(now, match.moves[derive(number, "opening", place) % len(match.moves)])
        return now

    def _play(self, now: Playing, text: str) -> bool:
        now.moves.append(text)
        return now.match.play(text)

    def _continue(self, now: Playing) -> None:
        """The others move until it is the agent's turn, or the match is over."""
        for _ in range(STUCK):
            if now.match.over or now.mine(now.match.mover):
                return
            own = now.opponents[now.match.mover]
            self._play(now, own.move(now.match, now.match.look(), derive(now.seed, "opponent", len(now.moves))))
        now.match.stop(f"the opponents made {STUCK} moves in a row")

    def step(self, action: str) -> Transition:
        now = self._playing
        if now is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        mover = now.match.mover
        fine = self._play(now, self._read(now, action))
        now.refused += not fine
        info: dict[str, Any] = {} if fine else {"refused": True}
        if not now.match.over:
            self._continue(now)
        if now.match.over:
            return self._end(now, mover, info)
        return Transition(self._see(now), info=info)

    @staticmethod
    def _read(now: Playing, action: str) -> str:
        text = action.strip()
        return text if now.match.game.talk or "[" in text or "]" in text or not text else f"[{text}]"

    def _end(self, now: Playing, mover: int, info: dict[str, Any]) -> Transition:
        match = now.match
        given = match.rewards() if not match.broken else {player: -1.0 if player == mover else 0.0 for player in range(match.players)}
        won = {player: _won(given, player) for player in given}
        own = mover if now.shared else now.seat
        self._over = "the game is over: call reset(task) before the next step"
        lowest, highest = min(given.values()), max(given.values())
        draw = match.players > 1 and lowest == highest
        info["measures"] = {"win": float(won[own]), "draw": float(draw), "refused": float(now.refused)}
        info["reason"] = match.reason()
        text = f"The game is over. {'You won. ' if won[own] else 'It is a draw. ' if draw else ''}{match.reason()}".strip()
        seen = Observation(text, anchor=match.state() if self.anchor == "state" else None, seat=own if now.shared else 0)
        others = {player: Share(self._worth(given[player], match), won[player]) for player in given if now.shared and player != own}
        return Transition(seen, self._worth(given[own], match), True, won[own], info, others)

    def _worth(self, given: float, match: Match) -> float:
        return (min(max(given, -1.0), 1.0) + 1) / 2 if self.rewards == "unit" and match.players > 1 else given

    def _see(self, now: Playing) -> Observation:
        match, seat = now.match, now.match.mover if now.shared else 0
        text = match.look(self._goal(now))
        anchor = match.state() if self.anchor == "state" else None
        return Observation(text, actions=match.moves or None, anchor=anchor, seat=seat)

    def _goal(self, now: Playing) -> str:
        """The line that opens what a player sees first; empty: the game's rules."""
        if self.rules:
            return ""
        who = f" as player {now.match.mover}" if now.match.players > 1 else ""
        return f"Your task is: win this game of {now.match.game.family}{who}."

    # -- advice -------------------------------------------------------------------------------------------------------------------

    def _expert(self) -> str | None:
        return self._advice(EXPERTS)

    def _rule(self) -> str | None:
        return self._advice(RULES)

    def _advice(self, table: Mapping[str, Any]) -> str | None:
        now = self._playing
        return None if now is None or self._over else now.match.ask(table[now.match.game.family])

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The moves so far. They are played again to restore the state, those of the opponents included: nobody is asked again."""
        now = self._playing
        if now is None or self._over:
            raise EpisodeOver(self._over)
        state = {"task": now.task.to_json(), "seed": now.seed, "opening": now.opening, "moves": now.moves}
        return pack("textarena", state | {"refused": now.refused}, self._options())

    def restore(self, state: bytes) -> Observation:
        kept = unpack(state, "textarena", self._options())
        with restoring("textarena"):
            task, seed, opening = Task.from_json(kept["task"]), int(kept["seed"]), int(kept["opening"])
            moves, refused = list(map(str, kept["moves"])), int(kept["refused"])
        now = self._begun(task, seed, opening)
        for text in moves[len(now.moves) :]:
            mine = now.mine(now.match.mover)
            seen = now.match.look(self._goal(now) if mine else "")
            if not mine:
                now.opponents[now.match.mover].heard(seen, text)
            self._play(now, text)
        if now.match.over:
            raise TurnwiseError("textarena: this snapshot is of a game that is over")
        now.refused, self._playing, self._over = refused, now, ""
        return self._see(now)

    def _options(self) -> Mapping[str, Any]:
        return {"rewards": self.rewards, "anchor": self.anchor, "rules": self.rules, "noise": self.noise}

    def close(self) -> None:
        self._playing, self._over = None, "the environment was closed: call reset(task) first"


def _players(game: Game, asked: int | None) -> int:
    """How many play: what was asked for, or the fewest that the game is for."""
    if asked is None or asked in game.players:
        return game.players[0] if asked is None else asked
    raise TurnwiseError(f"textarena: {game.family} is for {', '.join(map(str, game.players))} players, not {asked}")


def _won(given: Mapping[int, float], player: int) -> bool:
    """Alone: the whole reward. Among others: more than somebody, and no less than anybody."""
    own = given[player]
    return own >= 1 if len(given) == 1 else own == max(given.values()) and own > min(given.values())
