"""Learning curves: the tabular softmax policy trained with each credit, the same rule and the same random numbers for all.

Every iteration samples a batch from the current policy, makes the gradient Σ credit · ∇ log π, and moves the logits by `rate` in its
direction. A step has the same length whatever the scale of the credit, so only the direction counts; with a credit of 0 nothing moves.
The curve is not an estimate: it is the expected return of the policy by dynamic programming. The estimated critic learns only from the
batches of earlier iterations: each anchor's value moves halfway to its mean return in the batch after that batch was used. All runs
(lines × seeds) advance together; credit is computed run by run, as an algorithm may normalise over its whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from turnwise.data.rollouts import Floats
from turnwise.lab.lines import Line, look_up, value_table
from turnwise.lab.metrics import interval, policy_gradient
from turnwise.lab.problems import Problem
from turnwise.lab.sample import Batch, draw, sample, stack
from turnwise.lab.signals import View
from turnwise.lab.study import Case, stream
from turnwise.lab.values import action_values, best_return, expected_return, state_values
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate. Two groups of eight are deliberately little data: there the quality of credit matters most."""

    iterations: int = 45
    every: int = 3
    groups: int = 2
    size: int = 8
    rate: float = 0.3


class Critic:
    """Values of anchors, learned from batches that are already used."""

    def __init__(self, runs: int, states: int):
        self.table, self.overall = np.zeros((runs, states)), np.zeros(runs)

    def values(self, batch: Batch) -> Floats:
        return look_up(self.table, batch, self.overall)

    def learn(self, batch: Batch) -> None:
        runs, states = self.table.shape
        seen, count, mean = value_table(batch, states, runs)
        self.table += 0.5 * (count > 0) * (seen - self.table)
        self.overall += 0.5 * (mean - self.overall)


def train_case(case: Case, lines: Sequence[Line], seeds: int, seed: int, schedule: Schedule) -> dict[str, Any]:
    """label → curve, final value and area, on a scale from the first policy's return (0) to the best possible return (1)."""
    first, best = float(expected_return(case.problem, case.policy)), best_return(case.problem)
    if best - first < 1e-9:
        raise TurnwiseError(f"problem {case.label!r}: the first policy is the best there is. Give it less skill, or do not train")
    curves = _curves(case, lines, seeds, seed, schedule)
    shares = (curves - first) / (best - first)
    points = [at for at in range(schedule.iterations + 1) if at % schedule.every == 0]
    result: dict[str, Any] = {"first_return": first, "best_return": best, "iterations": points, "lines": {}}
    for index, line in enumerate(lines):
        mine = shares[:, index]
        spread = [interval(step) for step in mine]
        result["lines"][line.label] = {
            "curve": [one["mean"] for one in spread],
            "low": [one["low"] for one in spread],
            "high": [one["high"] for one in spread],
            "final": interval(mine[-1]),
            "area": interval(np.asarray(mine.mean(axis=0))),
        }
    return result


def _curves(case: Case, lines: Sequence[Line], seeds: int, seed: int, schedule: Schedule) -> Floats:
    """Exact expected returns, [points, lines, seeds]. Run number = line × seeds + seed."""
    problem, runs = case.problem, len(lines) * seeds
    logits = np.tile(np.log(np.maximum(case.policy, 1e-6)), (runs, 1, 1))
    critic = Critic(runs, problem.states)
    chances = [stream(seed, problem.name, "training", k) for k in range(seeds)]
    returns = []
    for iteration in range(schedule.iterations + 1):
        policy = softmax(logits)
        if iteration % schedule.every == 0:
            returns.append(expected_return(problem, policy).reshape(len(lines), seeds))
        if iteration == schedule.iterations:
            break
        draws = [draw(problem, schedule.groups, schedule.size, chance) for chance in chances]
        batch = sample(problem, policy, stack(draws * len(lines)))
        fresh = [partial(stream, seed, problem.name, "fresh", "training", k, iteration) for k in range(seeds)]
        values, truth = _informed(problem, policy, lines, seeds, batch)
        values["estimated"] = critic.values(batch)
        views = [View(problem, policy[run], batch, run, truth, values, fresh[run % seeds]) for run in range(runs)]
        credit = np.concatenate([np.asarray(lines[run // seeds].credit(view), np.float64) for run, view in enumerate(views)])
        logits += schedule.rate * direction(policy_gradient(credit, batch, policy))
        critic.learn(batch)
    return np.array(returns)


def _informed(problem: Problem, policy: Floats, lines: Sequence[Line], seeds: int, batch: Batch) -> tuple[dict[str, Floats], Floats]:
    """The exact critic's values and the true advantages, for the runs of lines that are bounds; 0 elsewhere."""
    exact, truth = np.zeros(len(batch.t)), np.zeros(len(batch.t))
    informed = [run for run in range(len(policy)) if lines[run // seeds].is_bound]
    if informed:
        q = action_values(problem, policy[informed])
        value = state_values(q, policy[informed])
        advantage = q - value[..., None]
        for place, run in enumerate(informed):
            rows = batch.part(run)
            t, state, action = batch.t[rows], batch.state[rows], batch.action[rows]
            exact[rows], truth[rows] = value[t, place, state], advantage[t, place, state, action]
    return {"exact": exact}, truth


def direction(gradient: Floats) -> Floats:
    """Each run's gradient with length 1; zero if there is only rounding."""
    length = np.sqrt((gradient**2).sum(axis=(1, 2), keepdims=True))
    return np.asarray(gradient / np.where(length > 1e-9, length, np.inf))


def softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True))
