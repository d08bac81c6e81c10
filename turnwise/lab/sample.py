"""Groups of trajectories from tabular policies, all at once: one loop over time, none over trajectories.

Random numbers are drawn first (`Draws`) and then used by a policy (`sample`). Two credit functions that are compared get the same draws,
so that their difference is not luck, and the draws of one never depend on which others run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from turnwise.data.anchors import AnchorTable, Ints, encode
from turnwise.data.rollouts import Bools, Floats, Rollouts
from turnwise.lab.problems import Problem


@dataclass(frozen=True)
class Draws:
    """Uniform numbers for every decision of a batch; `start` is [groups], the others are [groups × size, horizon]."""

    start: Floats
    action: Floats
    outcome: Floats
    noise: Floats
    fresh: Floats


def draw(problem: Problem, groups: int, size: int, rng: np.random.Generator) -> Draws:
    """The random numbers of `groups` groups of `size` trajectories."""
    shape = (groups * size, problem.horizon)
    return Draws(rng.random(groups), rng.random(shape), rng.random(shape), rng.standard_normal(shape), rng.random(shape))


def stack(draws: list[Draws]) -> Draws:
    """Several batches of one shape as one, with a leading axis of runs."""
    return Draws(**{field.name: np.stack([getattr(one, field.name) for one in draws]) for field in fields(Draws)})


@dataclass(frozen=True)
class Batch:
    """The turns of one or more runs as columns, sorted by run, trajectory and t. Run k has the rows `offsets[k]:offsets[k + 1]`."""

    run: Ints
    group: Ints
    trajectory: Ints
    t: Ints
    state: Ints
    action: Ints
    reward: Floats
    anchor: Ints
    next_anchor: Ints
    success: Bools
    offsets: Ints
    groups: int
    size: int
    has_goals: bool
    anchor_table: AnchorTable

    def part(self, run: int) -> slice:
        """The rows of one run."""
        return slice(int(self.offsets[run]), int(self.offsets[run + 1]))

    def rollouts(self, run: int, value: Floats | None = None) -> Rollouts:
        """One run as what credit functions take: an action is one token. `value` is a critic's, for the run's rows.

        Ids and anchors are dense already, so the columns are put in place as they are: `Rollouts.from_columns` would check and encode
        again what is right by construction, some ten thousand times in a lab run. Credit is the same either way."""
        rows = self.part(run)
        return Rollouts(
            group=self.group[rows],
            trajectory=self.trajectory[rows],
            t=self.t[rows],
            reward=self.reward[rows],
            anchor=self.anchor[rows],
            valid=np.ones(rows.stop - rows.start, np.bool_),
            group_labels=np.arange(self.groups),
            trajectory_labels=np.arange(self.groups * self.size),
            anchor_table=self.anchor_table,
            next_anchor=self.next_anchor[rows],
            success=self.success[rows] if self.has_goals else None,
            value=value,
            tokens=np.ones(rows.stop - rows.start, np.int64),
            token_value=value,
            extra={"state": self.state[rows], "action": self.action[rows]},
        )

    def returns_to_go(self) -> Floats:
        """The undiscounted sum of rewards from each turn to its trajectory's end."""
        ends = np.flatnonzero(np.concatenate([self.t[1:] == 0, [True]]))
        after = np.cumsum(self.reward[::-1])[::-1]
        beyond = np.concatenate([after[1:], [0.0]])[ends]
        return np.asarray(after - np.repeat(beyond, np.diff(np.concatenate([[-1], ends]))))


def sample(problem: Problem, policy: Floats, draws: Draws) -> Batch:
    """Play policies [runs, states, actions] on `draws` with the same number of runs."""
    runs, trajectories, horizon = draws.action.shape
    size = trajectories // draws.start.shape[1]
    run = np.repeat(np.arange(runs), trajectories)
    chosen, outcomes = cumulative(policy), cumulative(problem.probability)
    state = np.repeat(pick(draws.start, cumulative(problem.start)), size, axis=1).ravel()
    alive = np.ones(len(state), np.bool_)
    shape = (len(state), horizon)
    states, actions, after = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    reward, taken = np.zeros(shape), np.zeros(shape, np.bool_)
    for t in range(horizon):
        action = pick(draws.action[:, :, t].ravel(), chosen[run, state])
        outcome = pick(draws.outcome[:, :, t].ravel(), outcomes[state, action])
        states[:, t], actions[:, t], taken[:, t] = state, action, alive
        reward[:, t] = problem.reward[state, action, outcome] + problem.noise[state, action] * draws.noise[:, :, t].ravel()
        state = np.where(alive, problem.next_state[state, action, outcome], state)
        after[:, t] = state
        alive = alive & ~problem.terminal[state]
        if not alive.any():
            break
    own = draws.fresh.reshape(shape) < problem.recurrence
    once = problem.states + np.arange(trajectories * horizon).reshape(trajectories, horizon)
    anchor = np.where(own, problem.anchor[states], np.tile(once, (runs, 1)))
    last = ~np.concatenate([taken[:, 1:], np.zeros((len(state), 1), np.bool_)], axis=1)
    next_anchor = np.where(last, problem.anchor[after], np.roll(anchor, -1, axis=1))
    row, turn = np.nonzero(taken)
    counts = np.bincount(run[row], minlength=runs)
    trajectory = row % trajectories
    return Batch(
        run=run[row],
        group=trajectory // size,
        trajectory=trajectory,
        t=turn,
        state=states[taken],
        action=actions[taken],
        reward=reward[taken],
        anchor=anchor[taken],
        next_anchor=next_anchor[taken],
        success=problem.goal[state][row],
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        groups=draws.start.shape[1],
        size=size,
        has_goals=bool(problem.goal.any()),
        anchor_table=number_table(problem.states + trajectories * horizon),
    )


@lru_cache(maxsize=64)
def number_table(size: int) -> AnchorTable:
    """The anchors 0 … size − 1, each its own code."""
    numbers = np.arange(size)
    return encode({"anchor": numbers})[1]


def cumulative(probability: Floats) -> Floats:
    """Upper edges of the outcomes on the unit interval; the last is exactly 1."""
    edges = np.cumsum(probability, axis=-1)
    return np.asarray(edges / edges[..., -1:])


def pick(uniform: Floats, edges: Floats) -> Ints:
    """Which outcome each uniform number falls on."""
    return np.asarray((uniform[..., None] >= edges).sum(axis=-1))
