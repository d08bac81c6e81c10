"""Order, curriculum and experience against the slow references that were written from the formulas alone."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from references import inspo, seeupo

import turnwise as tw
from turnwise import Trajectory, Turn
from turnwise.data.batch import Batch
from turnwise.methods.registry import plans, schedules

SEEDS = range(6)


def random_batch(seed: int, groups: int = 3, size: int = 4, constant: bool = False, one_token: bool = False) -> Batch:
    """Groups of attempts with 1 to 5 turns of 1 to 4 tokens."""
    rng = np.random.default_rng(seed)
    found = []
    for group in range(groups):
        for member in range(size):
            turns = []
            for t in range(int(rng.integers(1, 6))):
                n = 1 if one_token else int(rng.integers(1, 5))
                turns.append(
                    Turn(f"{t}", 0.5 if constant else float(rng.normal()), response_ids=[1] * n, logprobs=(-rng.random(n)).tolist())
                )
            if constant:
                for turn in turns:
                    turn.reward = 1.0 / len(turns)
            found.append(Trajectory(group, group * size + member, turns=turns))
    return Batch.of(found)


CASES = [random_batch(seed) for seed in SEEDS]
CASES += [random_batch(7, 1, 1), random_batch(8, constant=True), random_batch(9, one_token=True), random_batch(10, 1, 2)]


@pytest.mark.parametrize("batch", CASES)
def test_seeupo_advantages(batch: Batch) -> None:
    r = batch.rollouts
    found, returns = tw.credit.compute("seeupo", r), batch.column("trajectory.return")[r.trajectory]
    for t in range(int(r.t.max()) + 1):
        rows = np.flatnonzero(r.t == t)
        assert found[rows] == pytest.approx(seeupo.advantages(returns[rows].tolist(), r.group[rows].tolist()), abs=1e-6)


@pytest.mark.parametrize("batch", CASES)
def test_the_weights_of_the_reverse_order(batch: Batch) -> None:
    r, rng = batch.rollouts, np.random.default_rng(1)
    old = rng.normal(size=len(batch.column("token.logprob")))
    now, new = old.copy(), old + 0.3 * rng.normal(size=len(old))
    steps = schedules["seeupo"].make({}, "schedule")
    view: Any = SimpleNamespace(batch=batch.with_columns({"turn.advantage": np.ones(len(r))}), score=now.copy)
    weights, numbers = np.zeros(len(r)), []
    running = steps(view)
    step = next(running)
    while step is not None:
        numbers.append(int(r.t[step.rows[0]]))
        weights[step.rows] = step.columns["turn.advantage"][step.rows]
        for row in step.rows:
            now[r.token_offsets[row] : r.token_offsets[row + 1]] = new[r.token_offsets[row] : r.token_offsets[row + 1]]
        try:
            step = running.send({})
        except StopIteration:
            break
    assert numbers == seeupo.order(int(r.t.max()) + 1)
    for k in range(len(batch.trajectories)):
        spans = [slice(r.token_offsets[row], r.token_offsets[row + 1]) for row in batch.rows(k)]
        expected = seeupo.factors([new[span].tolist() for span in spans], [old[span].tolist() for span in spans])
        assert weights[list(batch.rows(k))] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_means_of_instructions_and_which_one_goes(seed: int) -> None:
    rng = random.Random(seed)
    plan = plans["inspo"].make({"instructions": ["a", "b", "c", "d"], "every": 0, "least": 3}, "plan")
    rewards: dict[str, list[float]] = {one.text: [] for one in plan.population}
    for _ in range(14):
        one, value = rng.choice(plan.population), rng.choice([0.0, 0.5, 1.0])
        one.see(value)
        rewards[one.text].append(value)
    assert {one.text: one.mean for one in plan.population} == pytest.approx(inspo.means(rewards), abs=1e-6)
    assert (plan.population[0].mean, plan.population[0].tried) == pytest.approx(inspo.updated(0.0, 0, rewards["a"]), abs=1e-6)
    gone = [text for text in rewards if text not in inspo.kept(rewards, 3, least=3)]
    worst = plan.worst()
    assert [worst.text] == gone if worst is not None else not gone
