"""Trajectories on their way to another process: a trajectory message.

In a growing dialogue every prompt repeats the one before it: an iteration has millions of prompt tokens, of which a few percent are new.
A message holds the new ones only (turnwise/data/tokens.py), other numbers as one array, and everything else that turns have as columns,
one for each field of the schema.

    message = Message.encode(trajectories)      # to be pickled
    message.decode()                            # equal trajectories; what was one object is one object again
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.schema import NUMBERS, REPORTS, TOKEN_IDS, TRAJECTORY, TURN
from turnwise.data.tokens import Arrays, TokenDecoder, TokenEncoder, Tokens

PLAIN = tuple(field.name for field in TURN if field.type not in (TOKEN_IDS, NUMBERS, REPORTS))
OUTCOME = tuple(field.name for field in TRAJECTORY)
_plain, _outcome = attrgetter(*PLAIN), attrgetter(*OUTCOME)


@dataclass(frozen=True)
class Message:
    """Trajectories and turns are numbered in the order in which they are met.

    order          the numbers of the trajectories; one that comes twice is sent once
    trajectories   of each: the values of the schema's fields, and the numbers of its turns
    columns        one for each of PLAIN, with one entry per turn
    tokens         prompts and responses of the turns
    lengths        of each turn: how many log-probs it has, and how many values of each report
    numbers        these log-probs and values, one after another
    """

    order: list[int]
    trajectories: list[tuple[tuple[Any, ...], list[int]]]
    columns: list[tuple[Any, ...]]
    tokens: Arrays
    lengths: list[tuple[int, dict[str, int]]]
    numbers: array[float]

    @classmethod
    def encode(cls, trajectories: Iterable[Trajectory]) -> Message:
        """The message that delivers these trajectories."""
        all_of = list(trajectories)
        distinct = {id(trajectory): trajectory for trajectory in all_of}
        number_of = {identity: number for number, identity in enumerate(distinct)}
        tokens, turn_numbers, turns = TokenEncoder(), dict[int, int](), list[Turn]()
        for trajectory in distinct.values():
            for t, turn in enumerate(trajectory.turns):
                if id(turn) not in turn_numbers:  # otherwise a branch shares it
                    turn_numbers[id(turn)] = len(turns)
                    tokens.add(turn.prompt_ids, turn.response_ids, _tokens_of(trajectory.turns[t - 1]) if t else None)
                    turns.append(turn)
        lengths, numbers = list[tuple[int, dict[str, int]]](), list[float]()
        for turn in turns:
            numbers.extend(turn.logprobs)
            for values in turn.reports.values():
                numbers.extend(values)
            lengths.append((len(turn.logprobs), {name: len(values) for name, values in turn.reports.items()}))
        return cls(
            [number_of[id(trajectory)] for trajectory in all_of],
            [(_outcome(one), [turn_numbers[id(turn)] for turn in one.turns]) for one in distinct.values()],
            list(zip(*map(_plain, turns), strict=True)) if turns else [()] * len(PLAIN),
            tokens.take(),
            lengths,
            array("d", numbers),
        )

    def decode(self) -> list[Trajectory]:
        """The trajectories."""
        tokens, values, at = TokenDecoder(), self.numbers.tolist(), 0
        tokens.load(self.tokens)
        plain, all_turns, trajectories = list(zip(*self.columns, strict=True)), list[Turn](), list[Trajectory]()
        for outcome, numbers in self.trajectories:
            turns = list[Turn]()
            for number in numbers:
                if number == len(all_turns):
                    prompt, response = tokens.turn(_tokens_of(turns[-1]) if turns else None)
                    turn = Turn(**dict(zip(PLAIN, plain[number], strict=True)), prompt_ids=prompt, response_ids=response)
                    count, reports = self.lengths[number]
                    turn.logprobs, at = tuple(values[at : at + count]), at + count
                    for name, count in reports.items():
                        turn.reports, at = {**turn.reports, name: tuple(values[at : at + count])}, at + count
                    all_turns.append(turn)
                turns.append(all_turns[number])
            trajectories.append(Trajectory(**dict(zip(OUTCOME, outcome, strict=True)), turns=turns))
        return [trajectories[number] for number in self.order]


def _tokens_of(turn: Turn) -> Tokens:
    return turn.prompt_ids, turn.response_ids
