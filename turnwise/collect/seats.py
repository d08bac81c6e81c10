"""Attempts with several seats: one game, one trajectory per seat.

An environment with several seats says with every observation whose turn it is (`Observation.seat`), and with every step what it brought
the others (`Transition.others`). `Table` turns its answers into those that each seat would get from an environment of its own. A seat's
turn is complete when the seat is to move again, or when the game is over; whatever the others do in between is, for this seat, a part of
what the environment does. So every seat has a trajectory like any other, with its own context, seeds, rewards and success.

The seats of a game are compared with the same seat of other games: seat 0 stays in the group of its start, and the other seats have a group
each, named by group and seat. No token is learned from twice, and no trajectory is compared with its own opponent's.
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

SEAT = 1 << 40  # ids and groups of further seats are this far apart: no attempt and no place has such a number

APART = " seat "


def seated(start: Start, seat: int) -> Start:
    """The start of a further seat: its own group, number and chance, in the same game."""
    if seat == 0:
        return start
    group = start.group + seat * SEAT if isinstance(start.group, int) else f"{start.group}{APART}{seat}"
    return replace(start, group=group, number=seat_id(start.number, seat), policy_seed=derive(start.policy_seed, "seat", seat))


def seat_id(number: int, seat: int) -> int:
    """The id of the trajectory of a seat."""
    return number + seat * SEAT


def game_of(number: int) -> int:
    """The number of the attempt that a seat's trajectory belongs to. The numbers of attempts may be negative."""
    return (number + SEAT // 2) % SEAT - SEAT // 2


def planned_group(group: int | str) -> int | str:
    """The group that a plan has made, of the group of a seat."""
    return game_of(group) if isinstance(group, int) else group.partition(APART)[0]


def in_order(starts: Iterable[Start], found: Mapping[int | str, Trajectory]) -> list[Trajectory]:
    """The trajectories, given by their ids, in the order of the starts; the seats of a game in theirs."""
    games: dict[int, list[Trajectory]] = {}
    for number in sorted(map(int, found)):
        games.setdefault(game_of(number), []).append(found[number])
    return [trajectory for start in starts for trajectory in games.get(start.number, ())]


def note(trajectories: Mapping[int, Trajectory]) -> None:
    """Every turn says which seat has made it."""
    for seat, trajectory in trajectories.items():
        for turn in trajectory.turns:
            turn.info = {**turn.info, "seat": seat}


@dataclass
class Table:
    """The seats of one game. `mover` is the seat that was asked last, `seen` what it saw; `owed` are rewards of turns that are not complete
    yet, and `said` is what the environment said about them."""

    mover: int = 0
    seen: Observation | None = None
    owed: dict[int, float] = field(default_factory=dict)
    said: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    seats: set[int] = field(default_factory=lambda: {0})

    def deal(self, result: EnvResult) -> list[tuple[int, EnvResult]]:
        """What an answer of the environment means for each seat that it concerns. A fault concerns all."""
        transition = result.transition
        if transition is None:
            return [(seat, result) for seat in sorted(self.seats)]
        if self.seen is not None:
            self.owed[self.mover] = self.owed.get(self.mover, 0.0) + transition.reward
            self.said[self.mover] = transition.info
        for seat, share in transition.others.items():
            self.owed[seat] = self.owed.get(seat, 0.0) + share.reward
        if transition.done:
            won = {seat: share.success for seat, share in transition.others.items()} | {self.mover: transition.success}
            return [(seat, self._part(result, seat, transition, won.get(seat, False))) for seat in sorted(self.seats)]
        self.mover, self.seen = transition.observation.seat, transition.observation
        self.seats.add(self.mover)
        return [(self.mover, self._part(result, self.mover, transition, False))]

    def _part(self, result: EnvResult, seat: int, transition: Transition, success: bool) -> EnvResult:
        info = self.said.pop(seat, {})
        return result._replace(transition=Transition(transition.observation, self.owed.pop(seat, 0.0), transition.done, success, info))
