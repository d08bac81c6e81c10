"""Attempts with several players: one game, one trajectory per player.

An environment with several players says with every observation whose turn it is (`Observation.seat`), and with every step what it brought
the others (`Transition.others`). `Table` turns its answers into those that each player would get from an environment of its own. A turn is
complete when its player is to move again, or when the game is over; whatever the others do in between is, for this player, a part of what
the environment does. So every player has a trajectory like any other, with its own context, seeds, rewards and success.

Trajectories are compared with those of the same player in other games: player 0 stays in the group of its start, and every other player has
a group of its own, named by group and player. No token is learned from twice, and no trajectory is compared with its own opponent's.
Run folders and environments call a player by the number of its seat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import EnvResult
from turnwise.util.seeds import derive

PLAYER_OFFSET = 1 << 40  # ids and groups of further players are this far apart: no attempt and no place has such a number
APART = " seat "


def start_of(start: Start, player: int) -> Start:
    """The start of a further player: its own group, number and chance, in the same game."""
    if player == 0:
        return start
    group = start.group + player * PLAYER_OFFSET if isinstance(start.group, int) else f"{start.group}{APART}{player}"
    return replace(start, group=group, number=player_id(start.number, player), policy_seed=derive(start.policy_seed, "seat", player))


def player_id(number: int, player: int) -> int:
    """The id of the trajectory of a player."""
    return number + player * PLAYER_OFFSET


def game_of(number: int) -> int:
    """The number of the attempt that a seat's trajectory belongs to. The numbers of attempts may be negative."""
    return (number + PLAYER_OFFSET // 2) % PLAYER_OFFSET - PLAYER_OFFSET // 2


def planned_group(group: int | str) -> int | str:
    """The group that a plan has made, of the group of a player."""
    return game_of(group) if isinstance(group, int) else group.partition(APART)[0]


def in_order(starts: Iterable[Start], found: Mapping[int | str, Trajectory]) -> list[Trajectory]:
    """The trajectories, given by their ids, in the order of the starts; the players of a game in theirs."""
    games: dict[int, list[Trajectory]] = {}
    for number in sorted(map(int, found)):
        games.setdefault(game_of(number), []).append(found[number])
    return [trajectory for start in starts for trajectory in games.get(start.number, ())]


def note(trajectories: Mapping[int, Trajectory]) -> None:
    """Every turn says which player has made it."""
    for player, trajectory in trajectories.items():
        for turn in trajectory.turns:
            turn.info = {**turn.info, "seat": player}


@dataclass
class Table:
    """The players of one game. `mover` was asked last, `seen` is what it saw; `owed` are rewards of turns that are not complete
    yet, and `said` is what the environment said about them."""

    mover: int = 0
    seen: Observation | None = None
    owed: dict[int, float] = field(default_factory=dict)
    said: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    players: set[int] = field(default_factory=lambda: {0})

    def deal(self, result: EnvResult) -> list[tuple[int, EnvResult]]:
        """What an answer of the environment means for each player that it concerns. A fault concerns all."""
        transition = result.transition
        if transition is None:
            return [(player, result) for player in sorted(self.players)]
        if self.seen is not None:
            self.owed[self.mover] = self.owed.get(self.mover, 0.0) + transition.reward
            self.said[self.mover] = transition.info
        for player, share in transition.others.items():
            self.owed[player] = self.owed.get(player, 0.0) + share.reward
        if transition.done:
            won = {player: share.success for player, share in transition.others.items()} | {self.mover: transition.success}
            return [(player, self._part(result, player, transition, won.get(player, False))) for player in sorted(self.players)]
        self.mover, self.seen = transition.observation.seat, transition.observation
        self.players.add(self.mover)
        return [(self.mover, self._part(result, self.mover, transition, False))]

    def _part(self, result: EnvResult, player: int, transition: Transition, success: bool) -> EnvResult:
        info = self.said.pop(player, {})
        return result._replace(transition=Transition(transition.observation, self.owed.pop(player, 0.0), transition.done, success, info))
