"""Order, curriculum and experience against the slow references that were written from the formulas alone."""

from __future__ import annotations

import random
from difflib import SequenceMatcher
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from order_runs import attempt, gathers
from references import actguide, inspo, replay_success, seeupo, slea, tcod
from test_collect import numbered

import turnwise as tw
from turnwise import Task, Trajectory, Turn, objectives
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.tasks import TaskSet
from turnwise.methods.planning import Places
from turnwise.methods.registry import plans, schedules
from turnwise.methods.slea import Lesson, Library
from turnwise.objectives import Tokens

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


@pytest.mark.parametrize("batch", CASES)
def test_tcod_advantages(batch: Batch) -> None:
    old = batch.column("token.logprob")
    teacher = np.random.default_rng(3).normal(size=len(old))
    found = tw.credit.compute("tcod", batch.with_columns({"token.teacher_logprob": teacher}).rollouts, coef=0.7)
    assert found == pytest.approx(tcod.advantage(teacher, old, 0.7), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_buffer_of_successes(seed: int) -> None:
    rng = random.Random(seed)
    plan, places = plans["replay_success"].make({"size": 3}, "plan"), Places(TaskSet([Task("only")]), seed, 3)
    stored: list[int] = []
    for _ in range(25):
        scores = [rng.choice([0.0, 0.0, 0.0, 0.04, 0.11, 0.19, 1.0]) for _ in range(3)]
        first = places.used * 3
        found, _ = gathers(plan, places, 1, lambda start: attempt(start, scores[start.number - first]))  # noqa: B023
        took = [turn.response_ids[0] for t in found.trajectories for turn in t.turns]  # the number of whoever made the attempt
        group = [first, first + 1, first + 2]
        possible = [replay_success.replaced(group, scores, stored, (k + 0.5) / max(len(stored), 1)) for k in range(max(len(stored), 1))]
        assert took in possible and plan.fails(scores) == replay_success.fails(scores)
        stored = replay_success.remembered(stored, group, scores, size=3)
        assert [t.turns[0].response_ids[0] for t in plan.kept.get("only", [])] == stored


@pytest.mark.parametrize(("needed", "actions"), [(k, n) for n in (0, 1, 2, 5, 9) for k in range(n + 2)])
def test_the_search_for_the_fewest_actions(needed: int, actions: int) -> None:
    def shown(tasks: Any) -> list[Trajectory]:
        return [Trajectory(0, 0, task.id, [Turn("s", action="x")] * actions, success=True) for task in tasks]

    def play(start: Start) -> Trajectory:
        return attempt(start, float(start.forget and str(start.hint).count(". x") >= needed))

    _, rounds = gathers(plans["actguide"].make({"searches": 3}, "plan"), Places(numbered(2), 0, 2, expert=shown), 1, play)
    k, tried = actguide.smallest(lambda k: k >= needed, actions, first=0, probes=3)
    if actions:  # without reference actions the group stays as it is
        assert [str(starts[0].hint).count(". x") for starts in rounds[1:]] == [*tried, k]
    assert (len(rounds) > 1) == (actions > 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_of_guided_attempts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    new, plain, told, advantage = (rng.normal(size=(4, 3)) for _ in range(4))
    guided = [True, False, True, False]
    old = np.where(np.array(guided)[:, None], told, plain)  # what the engine reported: with guidance where there was some
    logprob = torch.tensor(new.ravel(), requires_grad=True)
    columns = [torch.tensor(column.ravel()) for column in (old, advantage)]
    ids = torch.arange(4).repeat_interleave(3)
    found = objectives.algorithms["clip"].function(Tokens(logprob, *columns, ids, ids, torch.ones(12, dtype=torch.float64)))
    [gradient] = torch.autograd.grad(found.loss.sum(), [logprob])
    loss, slope = actguide.losses(new.tolist(), plain.tolist(), told.tolist(), guided, advantage.tolist())
    assert found.loss.detach().numpy() == pytest.approx(np.array(loss).ravel(), abs=1e-6)
    assert gradient.numpy() == pytest.approx(np.array(slope).ravel(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_enters_the_library(seed: int) -> None:
    rng = random.Random(seed)
    library, expected = Library({"golden": 4, "warning": 4}, 0.85, 9), []

    def similarity(one: str, other: str) -> float:
        return max(SequenceMatcher(None, one.lower(), other.lower(), autojunk=False).ratio(), slea.overlap(one, other))

    for _ in range(40):
        text = " ".join(rng.choice(["go", "take", "open", "door", "box"]) for _ in range(rng.randint(1, 6)))
        score = rng.choice([0.1, 0.5, 0.9])
        library.add(Lesson("method", text, score))
        expected = slea.inserted(expected, (text, score), 4, 0.85, similarity, raise_score=True)
        assert [(entry.text, entry.score) for entry in library.entries] == expected
    best = [entry.text for entry in library.retrieve("", 2, 1)[0]]
    assert best == slea.retrieved(expected, 2)
    plan = plans["slea"].make({}, "plan")
    for step, entries in ((4, 20), (5, 9), (5, 10), (9, 0)):
        plan.step, plan.library.entries = step, [library.entries[0]] * entries
        assert plan.ready == slea.active(step, entries)


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
