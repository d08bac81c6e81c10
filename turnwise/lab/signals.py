"""Signals in the lab: the columns that some algorithms need, as far as tables can provide them.

    token.entropy           the entropy of the policy in the turn's state
    turn.information_gain   what a turn adds to the critic's value of the state; NaN on the last turn. A gold answer that becomes likelier
                            is such a value; here the critic estimates it.
    turn.potential_gain     the same with rewards: reward + value after − value before. The judge of a potential is the critic.
    turn.mc_value           the mean return of FRESH attempts from the turn's state; turns of a group with equal time and state share them

All other signals ask a language model and have no counterpart here. `View.spent` counts the turns of fresh attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import numpy as np

from turnwise.config.options import Entry
from turnwise.credit.registry import CreditFunction, stands_alone
from turnwise.data.anchors import Ints, dense
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.lab.problems import Problem
from turnwise.lab.sample import Batch, cumulative, pick

FRESH = 9  # attempts per state, as in VinePPO's code
FROM_CRITIC = ("turn.information_gain", "turn.potential_gain")
COLUMNS = ("token.entropy", *FROM_CRITIC, "turn.mc_value")
OF_BATCH = ("turn.action",)  # what every batch of the lab has, unlike every batch of a run


def runs_here(entry: Entry[CreditFunction]) -> bool:
    """Whether the lab has all columns that an algorithm needs."""
    return stands_alone(entry, (*COLUMNS, *OF_BATCH))


def wanted(entry: Entry[CreditFunction]) -> tuple[str, ...]:
    """The signals among an algorithm's needs."""
    return tuple(need for need in entry.needed({}) if need in COLUMNS)


class View:
    """One run of a batch as the lines see it: `truth` and the values of each critic are for all rows of the batch. The rollouts are made
    once for each critic, and the values of fresh attempts when the first line asks for them."""

    def __init__(
        self,
        problem: Problem,
        policy: Floats,
        batch: Batch,
        run: int,
        truth: Floats,
        values: Mapping[str, Floats],
        chance: Callable[[], np.random.Generator],
    ):
        self.problem, self.policy, self.batch, self.run, self.rows = problem, policy, batch, run, batch.part(run)
        self.truth, self.values, self._chance = truth[self.rows], values, chance
        self._made: dict[str, Rollouts] = {}
        self._fresh: Floats | None = None
        self.spent = 0  # turns of fresh attempts so far

    def on(self, batch: Batch) -> View:
        """The same run with other anchors in the batch."""
        view = copy(self)
        view.batch, view._made = batch, {}
        return view

    def rollouts(self, critic: str = "estimated", signals: tuple[str, ...] = ()) -> Rollouts:
        """The rollouts with a critic's values, and the columns of these signals."""
        values = self.values[critic][self.rows]
        if critic not in self._made:
            self._made[critic] = self.batch.rollouts(self.run, values)
        return self._made[critic].with_columns({name: self._column(name, values) for name in signals})

    def _column(self, name: str, values: Floats) -> Floats:
        if name == "token.entropy":
            chosen = np.maximum(self.policy, 1e-300)
            return np.asarray(-(chosen * np.log(chosen)).sum(axis=-1)[self.batch.state[self.rows]])
        if name == "turn.mc_value":
            if self._fresh is None:
                self._fresh = self._fresh_values()
            return self._fresh
        last = np.append(self.batch.t[self.rows][1:] == 0, True)
        after = np.where(last, 0.0, np.append(values[1:], 0.0))
        if name == "turn.potential_gain":
            return np.asarray(self.batch.reward[self.rows] + after - values)
        return np.where(last, np.nan, after - values)

    def _fresh_values(self) -> Floats:
        t, state, group = (column[self.rows] for column in (self.batch.t, self.batch.state, self.batch.group))
        width = self.problem.horizon * self.problem.states
        distinct, code = dense(group * width + t * self.problem.states + state)
        at = np.asarray(distinct, np.int64) % width
        values, self.spent = fresh_returns(self.problem, self.policy, at % self.problem.states, at // self.problem.states, self._chance())
        return values[code]


def fresh_returns(problem: Problem, policy: Floats, state: Ints, t: Ints, rng: np.random.Generator) -> tuple[Floats, int]:
    """The mean return of FRESH attempts from each state at its time, and how many turns they took together."""
    now, left = np.repeat(state, FRESH), np.repeat(problem.horizon - t, FRESH)
    chosen, outcomes = cumulative(policy), cumulative(problem.probability)
    total, turns, step = np.zeros(len(now)), 0, 0
    active = ~problem.terminal[now] & (left > 0)
    while active.any():
        action = pick(rng.random(len(now)), chosen[now])
        outcome = pick(rng.random(len(now)), outcomes[now, action])
        reward = problem.reward[now, action, outcome] + problem.noise[now, action] * rng.standard_normal(len(now))
        total += np.where(active, reward, 0.0)
        turns, step = turns + int(active.sum()), step + 1
        now = np.where(active, problem.next_state[now, action, outcome], now)
        active = active & ~problem.terminal[now] & (step < left)
    return total.reshape(-1, FRESH).mean(axis=1), turns
