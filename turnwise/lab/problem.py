"""A finite decision problem as numpy tables, and the small builder that fills them.

Tables keep the *outcomes* of an action (next state, probability, reward) side by side instead of a dense states × actions × states cube:
a tree of some hundred states stays small, and both dynamic programming and sampling become one indexing step for all states at once.

The agent's policy is a table over states; credit functions see only *anchors*. That is the situation of a language model: its prompt
holds more than the key by which turns are compared. Two knobs act on the anchors alone and leave the true advantages as they are:
`aliasing` lets neighbouring states share an anchor, `recurrence` is the share of turns whose anchor is the state's own and not a
one-off (a clock or a session number in the observation).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True, eq=False)
class Problem:
    """`next_state`, `probability` and `reward` (its mean) are [states, actions, outcomes]; `noise` is [states, actions], the standard
    deviation of the reward around its mean. A trajectory starts in a state drawn from `start` (one draw per group: the task), ends in a
    `terminal` state or after `horizon` turns, and succeeds if it ends in a `goal` state. A problem without goals has no success at
    all."""

    name: str
    next_state: Ints
    probability: Floats
    reward: Floats
    noise: Floats
    terminal: Bools
    goal: Bools
    start: Floats
    horizon: int
    anchor: Ints
    recurrence: float = 1.0

    @property
    def states(self) -> int:
        return len(self.next_state)

    @property
    def actions(self) -> int:
        return int(self.next_state.shape[1])

    def with_anchors(self, *, aliasing: int = 1, recurrence: float | None = None) -> Problem:
        """The same problem seen through other anchors: every `aliasing` neighbouring states share one; `recurrence` as above."""
        if aliasing < 1:
            raise TurnwiseError(f"problem {self.name!r}: aliasing is how many states share an anchor, at least 1, not {aliasing}")
        share = self.recurrence if recurrence is None else recurrence
        if not 0 <= share <= 1:
            raise TurnwiseError(f"problem {self.name!r}: recurrence is a share of turns, in [0, 1], not {share}")
        return replace(self, anchor=np.arange(self.states) // aliasing, recurrence=float(share))

    def check(self) -> Problem:
        """The problem itself; an error names the first state where the tables do not fit together."""
        shape = self.next_state.shape
        if self.probability.shape != shape or self.reward.shape != shape or self.noise.shape != shape[:2]:
            raise TurnwiseError(f"problem {self.name!r}: next_state, probability and reward need one shape [states, actions, outcomes]")
        if self.horizon < 1:
            raise TurnwiseError(f"problem {self.name!r}: the horizon must be at least 1 turn, not {self.horizon}")
        wrong = (np.abs(self.probability.sum(axis=2) - 1) > 1e-9) | (self.probability < 0).any(axis=2)
        if wrong.any():
            state, action = np.argwhere(wrong)[0]
            raise TurnwiseError(f"problem {self.name!r}: the outcomes of action {action} in state {state} do not add up to probability 1")
        if (self.next_state < 0).any() or (self.next_state >= self.states).any():
            raise TurnwiseError(f"problem {self.name!r}: a next state lies outside 0 … {self.states - 1}")
        if abs(self.start.sum() - 1) > 1e-9 or (self.start[self.terminal] > 0).any():
            raise TurnwiseError(f"problem {self.name!r}: the start must be a distribution over states that are not terminal")
        return self


class Builder:
    """Collects outcomes state by state. The last two states are the ends: `won` (a goal) and `lost`; before them lie `delay` waiting
    states, in which no action matters, between the deciding turn and its reward of 1."""

    def __init__(self, name: str, states: int, actions: int, outcomes: int = 1, delay: int = 0):
        total = states + delay + 2
        self.name, self.first_wait, self.delay = name, states, delay
        self.won, self.lost = total - 2, total - 1
        self.next_state = np.zeros((total, actions, outcomes), np.int64)
        self.probability = np.zeros((total, actions, outcomes))
        self.reward = np.zeros((total, actions, outcomes))
        self.noise = np.zeros((total, actions))
        self.filled = np.zeros((total, actions), np.int64)
        for step in range(delay):
            for action in range(actions):
                self.add(states + step, action, states + step + 1, reward=float(step == delay - 1))
        for end in (self.won, self.lost):
            for action in range(actions):
                self.add(end, action, end)

    def add(self, state: int, action: int, to: int, probability: float = 1.0, reward: float = 0.0) -> None:
        """One more outcome of an action."""
        slot = self.filled[state, action]
        self.next_state[state, action, slot] = to
        self.probability[state, action, slot] = probability
        self.reward[state, action, slot] = reward
        self.filled[state, action] += 1

    def win(self, state: int, action: int, probability: float = 1.0) -> None:
        """An outcome that decides for success: the reward of 1 follows at once or after the waiting states."""
        self.add(state, action, self.first_wait if self.delay else self.won, probability, reward=float(self.delay == 0))

    def build(self, start: list[int], horizon: int, aliasing: int, recurrence: float, goals: bool = True) -> Problem:
        """The finished problem; `start` lists the equally likely first states."""
        terminal = np.zeros(len(self.next_state), np.bool_)
        terminal[[self.won, self.lost]] = True
        goal = np.zeros(len(terminal), np.bool_)
        goal[self.won] = goals
        first = np.bincount(start, minlength=len(terminal)) / len(start)
        tables = (self.next_state, self.probability, self.reward, self.noise)
        problem = Problem(self.name, *tables, terminal, goal, first, horizon, np.arange(len(terminal)))
        return problem.with_anchors(aliasing=aliasing, recurrence=recurrence).check()
