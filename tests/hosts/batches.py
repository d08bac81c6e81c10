"""Random attempts for the tests of hosts: uneven numbers of turns, empty and long responses, invalid turns, groups of one attempt, groups
whose attempts end equally. A host's test puts them into the host's own objects; `expected` says which advantage each sampled token gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import turnwise as tw

# Methods that every host must agree on, with the options of the comparison. `gae` and `bi_level_gae` read a critic's values.
METHODS: dict[str, dict[str, object]] = {
    "gigpo": {"gamma": 0.9},
    "grpo": {},
    "rloo": {},
    "hgpo": {"history": 2},
    "gae": {"level": "turn", "gamma": 0.9},
    "bi_level_gae": {},
}
NEED_VALUES = ("gae", "bi_level_gae")
STATES = ("hall", "kitchen", "cellar", "garden")


@dataclass
class Turn:
    """One response and what led to it."""

    anchor: str  # the state that the turn starts from
    prompt: list[int]  # new tokens of the observation, not sampled
    response: list[int]  # sampled tokens
    reward: float
    valid: bool
    value: float  # a critic's value of the state
    token_values: list[float]  # one per response token


@dataclass
class Attempt:
    group: str
    number: int  # unique in the batch
    turns: list[Turn] = field(default_factory=list)

    @property
    def outcome(self) -> float:
        return sum(turn.reward for turn in self.turns)


def random_attempts(
    seed: int, *, groups: int = 4, attempts: int = 4, longest: int = 5, tokens: int = 6, outcome_only: bool = False, least: int = 1
) -> list[Attempt]:
    """Attempts in random order. The first group has a single attempt, and all attempts of the second have the same rewards. `least` is the
    number of tokens that a response has at least; with `outcome_only`, only last turns have a reward."""
    rng = np.random.default_rng(seed)
    result: list[Attempt] = []
    for group in range(groups):
        for _ in range(1 if group == 0 else attempts):
            attempt = Attempt(f"task {group}", len(result))
            count = 3 if group == 1 else int(rng.integers(1, longest + 1))
            for t in range(count):
                length = int(rng.integers(least, tokens + 1))
                reward = float(t == count - 1) if group == 1 else float(rng.choice([0.0, 0.0, 0.5, 1.0]))
                attempt.turns.append(
                    Turn(
                        anchor=STATES[int(rng.integers(len(STATES)))],
                        prompt=rng.integers(10, 90, int(rng.integers(1, 5))).tolist(),
                        response=rng.integers(10, 90, length).tolist(),
                        reward=reward if t == count - 1 or not outcome_only else 0.0,
                        valid=bool(rng.random() > 0.1),
                        value=float(rng.normal()),
                        token_values=rng.normal(size=length).tolist(),
                    )
                )
            result.append(attempt)
    order = rng.permutation(len(result))
    return [result[i] for i in order]


def rollouts_of(attempts: list[Attempt]) -> tw.Rollouts:
    rows = [(attempt, t, turn) for attempt in attempts for t, turn in enumerate(attempt.turns)]
    return tw.Rollouts.from_columns(
        group=[attempt.group for attempt, _, _ in rows],
        trajectory=[attempt.number for attempt, _, _ in rows],
        t=[t for _, t, _ in rows],
        reward=[turn.reward for _, _, turn in rows],
        anchor=[turn.anchor for _, _, turn in rows],
        valid=[turn.valid for _, _, turn in rows],
        value=[turn.value for _, _, turn in rows],
        tokens=[len(turn.response) for _, _, turn in rows],
        token_value=[value for _, _, turn in rows for value in turn.token_values],
    )


def expected(name: str, attempts: list[Attempt], **options: object) -> dict[tuple[int, int], NDArray[np.float32]]:
    """The advantages of the sampled tokens of each turn, by number of the attempt and index of the turn, from `tw.credit.compute`."""
    rollouts = rollouts_of(attempts)
    credit = tw.credit.assign(name, rollouts, **(METHODS[name] | options))
    result, row = {}, 0
    for attempt in attempts:
        for t, turn in enumerate(attempt.turns):
            first = int(rollouts.token_offsets[row])
            per_token = credit.values[first : first + len(turn.response)] if credit.level == "token" else credit.values[row]
            result[attempt.number, t] = np.broadcast_to(per_token, len(turn.response)).astype(np.float32)
            row += 1
    return result
