"""Trajectories on their way to another process: a trajectory message.

In a growing dialogue every prompt repeats the one before it: an iteration has millions of prompt tokens, of which a few percent are new.
A message holds the new ones only (turnwise/data/tokens.py), other numbers as one array, and everything else that turns have as columns,
one for each field of the schema.

    message = Message.encode(trajectories)      # to be pickled
    message.decode()                            # equal trajectories; what was one object is one object again

Trajectories can also be sent in several messages, one after another, and while they still grow: an `Encoder` knows what it has sent, and a
`Decoder` that gets all messages of this encoder, in order, knows it too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.schema import NUMBERS, REPORTS, TOKEN_IDS, TRAJECTORY, TURN
from turnwise.data.tokens import Arrays, TokenDecoder, TokenEncoder, Tokens

PLAIN = tuple(field.name for field in TURN if field.type not in (TOKEN_IDS, NUMBERS, REPORTS))
OUTCOME = tuple(field.name for field in TRAJECTORY)
TURNS_BETWEEN_PAUSES = 16
_plain, _outcome = attrgetter(*PLAIN), attrgetter(*OUTCOME)


@dataclass(frozen=True)
class Message:
    """Trajectories and turns are numbered in the order in which their encoder met them.

    order      the numbers of the trajectories that the message delivers
    further    trajectories with further turns: their number, and the numbers of these turns
    outcomes   of trajectories that are complete now: their number, and the values of the schema's fields
    columns    one for each of PLAIN, with one entry per new turn
    tokens     prompts and responses of the new turns
    lengths    of each new turn: how many log-probs it has, and how many values of each report
    numbers    these log-probs and values, one after another
    """

    order: list[int]
    further: list[tuple[int, list[int]]]
    outcomes: list[tuple[int, tuple[Any, ...]]]
    columns: list[tuple[Any, ...]]
    tokens: Arrays
    lengths: list[tuple[int, dict[str, int]]]
    numbers: array[float]

    @classmethod
    def encode(cls, trajectories: Iterable[Trajectory]) -> Message:
        """The message that delivers these trajectories."""
        return Encoder().encode(trajectories)

    def decode(self) -> list[Trajectory]:
        """The trajectories, if this is the only message of its encoder."""
        return Decoder().decode(self)


@dataclass(slots=True)
class _Sent:
    """What was sent of a trajectory. It is held here, because it is recognised by its identity."""

    number: int
    trajectory: Trajectory
    turns: int = 0
    complete: bool = False


class Encoder:
    """Takes trajectories apart. `pause` is called between small parts of the work."""

    def __init__(self, pause: Callable[[], object] = lambda: None) -> None:
        self._pause = pause
        self._tokens = TokenEncoder()
        self._sent: dict[int, _Sent] = {}
        self._turns: dict[int, tuple[int, Turn]] = {}
        self._trajectory_count = self._turn_count = 0

    def encode(self, complete: Iterable[Trajectory], growing: Iterable[Trajectory] = ()) -> Message:
        """The message that delivers complete trajectories. The turns that growing ones have so far travel with it."""
        order, new = [], list[Turn]()
        further, outcomes = [(sent.number, self._add(sent, new)) for sent in map(self._known, growing)], []
        for trajectory in complete:
            sent = self._known(trajectory)
            order.append(sent.number)
            if not sent.complete:
                further.append((sent.number, self._add(sent, new)))
                outcomes.append((sent.number, _outcome(trajectory)))
                sent.complete = True
        columns = list(zip(*map(_plain, new), strict=True)) if new else [()] * len(PLAIN)
        lengths, numbers = list[tuple[int, dict[str, int]]](), list[float]()
        for turn in new:
            numbers.extend(turn.logprobs)
            for values in turn.reports.values():
                numbers.extend(values)
            lengths.append((len(turn.logprobs), {name: len(values) for name, values in turn.reports.items()}))
        return Message(order, further, outcomes, columns, self._tokens.take(), lengths, array("d", numbers))

    def forget(self, trajectory: Trajectory) -> None:
        """Send a trajectory again: it was changed since."""
        if self._sent.pop(id(trajectory), None) is not None:
            for turn in trajectory.turns:
                self._turns.pop(id(turn), None)

    def _known(self, trajectory: Trajectory) -> _Sent:
        sent = self._sent.get(id(trajectory))
        if sent is None:
            sent = self._sent[id(trajectory)] = _Sent(self._trajectory_count, trajectory)
            self._trajectory_count += 1
        return sent

    def _add(self, sent: _Sent, new: list[Turn]) -> list[int]:
        """The numbers of a trajectory's further turns, after those that are new were added to the message."""
        numbers, turns = list[int](), sent.trajectory.turns
        for t in range(sent.turns, len(turns)):
            turn = turns[t]
            if id(turn) not in self._turns:
                self._turns[id(turn)] = self._turn_count, turn
                self._turn_count += 1
                self._tokens.add(turn.prompt_ids, turn.response_ids, _tokens_of(turns[t - 1]) if t else None)
                new.append(turn)
                if not len(new) % TURNS_BETWEEN_PAUSES:
                    self._pause()
            numbers.append(self._turns[id(turn)][0])
        sent.turns += len(numbers)
        return numbers


class Decoder:
    """Puts together what an encoder took apart, and numbers it as the encoder does."""

    def __init__(self) -> None:
        self._tokens = TokenDecoder()
        self._complete: dict[int, Trajectory] = {}
        self._turns_of: list[list[Turn]] = []  # of every trajectory, complete or not
        self._turns: list[Turn] = []

    def decode(self, message: Message) -> list[Trajectory]:
        """The trajectories that the message delivers."""
        count = max((number + 1 for number, _ in message.further), default=0)
        self._turns_of += [[] for _ in range(len(self._turns_of), count)]
        self._tokens.load(message.tokens)
        values, first = message.numbers.tolist(), len(self._turns)
        plain, at = list(zip(*message.columns, strict=True)), 0
        for trajectory, numbers in message.further:
            turns = self._turns_of[trajectory]
            for number in numbers:
                if number == len(self._turns):
                    prompt, response = self._tokens.turn(_tokens_of(turns[-1]) if turns else None)
                    turn = Turn(**dict(zip(PLAIN, plain[number - first], strict=True)), prompt_ids=prompt, response_ids=response)
                    count, reports = message.lengths[number - first]
                    turn.logprobs, at = tuple(values[at : at + count]), at + count
                    for name, count in reports.items():
                        turn.reports, at = {**turn.reports, name: tuple(values[at : at + count])}, at + count
                    self._turns.append(turn)
                turns.append(self._turns[number])
        for trajectory, outcome in message.outcomes:
            self._complete[trajectory] = Trajectory(**dict(zip(OUTCOME, outcome, strict=True)), turns=self._turns_of[trajectory])
        return [self._complete[number] for number in message.order]


def _tokens_of(turn: Turn) -> Tokens:
    return turn.prompt_ids, turn.response_ids
