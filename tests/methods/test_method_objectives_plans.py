"""Filters of groups, CPPO and DAPO: the parts against slow references. (The authors' numbers: test_authors_plans.py.)"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gradient_cases import GradientOf, assert_same
from learn_cases import credited, tiny, trajectories
from method_cases import attempt, gathers, make

import turnwise as tw
from turnwise import Task, Trajectory, Turn, TurnwiseError
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.tasks import TaskSet
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.methods.cppo import largest
from turnwise.methods.planning import Gathered, Plan, TaskSlots
from turnwise.methods.registry import plans
from turnwise.methods.starpo_s import Filtered, select
from turnwise.recipe.schema import Config

SEEDS = range(5)


def attempts(*returns: list[float], turns: int = 2) -> list[list[Trajectory]]:
    """Groups of attempts with these returns, on the last of their turns."""
    return [
        [
            Trajectory(g, 100 * g + k, turns=[Turn("s", value * (t == turns - 1), response_ids=[1, 2]) for t in range(turns)])
            for k, value in enumerate(group)
        ]
        for g, group in enumerate(returns)
    ]


def flat(groups: list[list[Any]]) -> list[Any]:
    return [one for group in groups for one in group]


def drawn(seed: int) -> list[list[float]]:
    """Returns of a few groups of different sizes; some groups are constant."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, rng.integers(1, 7))
    return [[0.3] * size if rng.random() < 0.3 else rng.choice([0.0, 0.5, 1.0, 2.0], size).tolist() for size in sizes]


def brought(plan: Plan, *rounds: tuple[list[float], ...]) -> Gathered:
    """What a plan returns when the attempts of its rounds have these returns, group by group."""
    returns, size = [values for groups in rounds for values in groups], len(rounds[0][0])
    slots = TaskSlots(TaskSet([Task("only")]), 0, size)

    def play(start: Start) -> Trajectory:
        value = returns[int(start.group)][start.number % size]
        return replace(attempt(start, value), success=value > 0.7)

    found, asked = gathers(plan, slots, len(rounds[0]), play)
    assert len(asked) == len(rounds)
    return found


# -- filters ------------------------------------------------------------------------------------------------------------------------


def test_only_the_groups_with_the_largest_spread_are_learned_from() -> None:
    found = brought(Filtered(strategy="top_k", keep=0.5), ([0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0], [1, 1, 1, 0.9]))
    assert [t.group for t in found.trajectories] == [1] * 4 + [2] * 4
    assert found.counts == {"groups_scored": 4.0, "groups_kept": 2.0, "empty_in_a_row": 0.0}
    assert select([], "top_k").tolist() == [] and select([0.0, 0.0], "top_p", 0.5, zero=True).tolist() == []


def test_a_filter_goes_around_any_plan_and_asks_for_what_that_needs() -> None:
    plan = Filtered(base="dynamic", options={"refills": 1}, strategy="top_k", keep=0.5)
    found = brought(plan, ([0, 0], [0, 1]), ([0, 2],))
    by_success = brought(make("dynamic", refills=0, metric="success"), ([0.1, 0.2], [0.1, 0.9]))
    assert {t.group for t in by_success.trajectories} == {1}
    assert [t.group for t in found.trajectories] == [2, 2] and found.counts["refills"] == 1
    entry = plans["filtered"]
    assert entry.needed({}) == () and entry.needed({"base": "arpo"}) == plans["arpo"].needs
    fits = {"agent.max_prompt_tokens": 500, "plan.name": "filtered"}
    assert Config.load(None, {**fits, "plan.metric": "reward_std"}).plan is not None  # as the record of an earlier run has it
    with pytest.raises(TurnwiseError, match="'filtered' has no option 'metric' any more: remove it"):
        Config.load(None, {**fits, "plan.metric": "entropy"})


def test_empty_iterations_in_a_row_end_the_run_also_after_a_resume() -> None:
    plan, alike, apart = Filtered(patience=3), ([1.0, 1.0], [0.0, 0.0]), ([0.0, 1.0], [0.0, 0.0])
    assert [brought(plan, groups).counts["empty_in_a_row"] for groups in (alike, apart, alike, alike)] == [1, 0, 1, 2]
    resumed = Filtered(patience=3)
    resumed.load_state(plan.state())
    for own in (plan, resumed):
        with pytest.raises(TurnwiseError, match=r"no group was kept in 3 iterations in a row.*collect\.group_size.*plan\.zero"):
            brought(own, alike)


def test_credit_of_tokens_is_weighted_by_the_spread_of_the_group() -> None:
    """GRPO's credit is compared with the authors' numbers: tests/credit/test_credit_golden.py."""
    for seed in SEEDS:
        returns = drawn(seed)
        batch = Batch.of(flat(attempts(*returns)))
        columns = {"token.value": np.random.default_rng(seed).normal(size=int(batch.rollouts.tokens.sum()))}
        rollouts = batch.with_columns(columns).rollouts
        found = tw.credit.assign("snr_weighted", rollouts, base="gae", options={"level": "token"})
        plain = tw.credit.assign("gae", rollouts, norm="none", level="token")
        spread = np.array([np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in returns])
        weights = np.repeat((spread / max(spread.max(), 1e-9))[rollouts.group], np.diff(rollouts.token_offsets))
        np.testing.assert_allclose(found.values, plain.values * weights, atol=1e-6, rtol=2e-5)  # 1e-6 on the largest spread there
        np.testing.assert_allclose(found.targets, plain.targets)
    assert tw.credit.algorithms["snr_weighted"].needed({"base": "gae"}) == ("group.peers", "turn.value")
    with pytest.raises(TurnwiseError, match="cannot weight itself"):
        tw.credit.algorithms["snr_weighted"].needed({"base": "snr_weighted"})


# -- CPPO ---------------------------------------------------------------------------------------------------------------------------


def most_different(advantages: list[float], prune: float) -> list[int]:
    """The attempts with the largest absolute advantage, at least one; of equals the first."""
    room = max(1, int(len(advantages) * (1 - prune) + 1e-9))
    return sorted(sorted(range(len(advantages)), key=lambda k: -abs(advantages[k]))[:room])


@pytest.mark.parametrize("prune", [0.0, 0.5, 0.75, 0.9])
def test_the_attempts_with_the_largest_advantage_of_each_group_are_kept(prune: float) -> None:
    for seed in SEEDS:
        groups = attempts(*drawn(seed))
        batch = Batch.of(flat(groups))
        batch = tw.credit.columns.give(batch, "grpo")
        by_attempt = batch.column("turn.advantage")[::2]
        kept, start = [], 0
        for group in groups:
            own = by_attempt[start : start + len(group)].tolist()
            kept += [start + k for k in most_different(own, prune)]
            start += len(group)
        assert np.flatnonzero(largest(batch.rollouts, prune)).tolist() == kept
        assert np.flatnonzero(largest(batch.rollouts, prune, "batch")).tolist() == most_different(by_attempt.tolist(), prune)
    with pytest.raises(TurnwiseError, match="needs advantages"):
        largest(Batch.of(flat(attempts([0.0, 1.0]))).rollouts, 0.5)


@pytest.mark.parametrize("context", ["window", "full"])
def test_pruned_attempts_count_in_the_mean_of_their_group_and_in_nothing_else(context: str) -> None:
    found = trajectories(4, groups=2, size=4, context=context)
    batch = tw.credit.columns.give(Batch.of(found), "grpo")
    kept = largest(batch.rollouts, 0.5)
    assert kept.sum() == 4
    rows = np.flatnonzero(kept[batch.rollouts.trajectory])
    alone = [t for k, t in enumerate(batch.trajectories) if kept[batch.rollouts.trajectory[batch.rows(k)[0]]]]

    def gradient(schedule: str, given: Batch) -> Any:
        return GradientOf(Learner(tiny(), LearnerSettings(schedule=schedule, optimiser=OptimiserSettings(lr=0.0))))(given)

    pruned = gradient("cppo", batch)
    assert_same(pruned, gradient("shuffled", credited(alone, batch.column("turn.advantage")[rows])))
    with pytest.raises(AssertionError):
        assert_same(pruned, gradient("shuffled", batch))


# -- DAPO ---------------------------------------------------------------------------------------------------------------------------


def test_overlong_responses_cost_reward() -> None:
    lengths = [1, 6, 7, 10, 30]
    turns = [Turn("s", 1.0, response_ids=[1] * n) for n in lengths]
    batch = Batch.of([Trajectory(0, 0, turns=turns), Trajectory(0, 1, turns=turns[:1])])
    signal = tw.methods.signals["overlong"].function
    found = signal(batch, None, limit=10, buffer=4, factor=0.5)
    expected = [0, 0, -0.125, -0.5, -3.0, 0]  # min(0, (6 − length) / 4 · 0.5)
    assert found["turn.overlong"] == pytest.approx(expected) and found["turn.reward"] == pytest.approx(1 + np.array(expected))
    whole = signal(batch, None, limit=60, buffer=10, level="trajectory")["turn.overlong"]
    assert whole == pytest.approx([0, 0, 0, 0, -0.4, 0])  # 54 tokens
    with pytest.raises(TurnwiseError, match="smaller buffer"):
        signal(batch, SimpleNamespace(), limit=3, buffer=4)
    own = signal(batch, SimpleNamespace(longest=10))["turn.overlong"]  # the engine's limit, and a fifth of it
    assert own == pytest.approx([0, 0, 0, -1, -11, 0])
    for options in ({}, {"level": "trajectory"}):
        with pytest.raises(TurnwiseError, match="set limit"):
            signal(batch, SimpleNamespace(longest=0 if not options else 10), **options)
