"""The collector: who generates when, why attempts end, what chance depends on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import pytest
from collect_cases import WordEngine, attempts, gathered, numbered, play, policy
from rich.console import Console
from slow_env import Slow
from toy_env import Corridor

from turnwise import Rollouts, Stop, Task, TaskSet
from turnwise.collect.collector import Answer, Collector, Start
from turnwise.collect.hooks import Hooks
from turnwise.collect.panel import evaluation_of, panel_starts
from turnwise.collect.rewards import Rewards, Term
from turnwise.collect.source import summarise
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.base import Response
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Dynamic, TaskSlots
from turnwise.report.closing import show_evaluation
from turnwise.util.statistics import wilson


def test_every_attempt_is_played_to_its_end_in_the_order_asked_for_and_nothing_is_generated_in_vain() -> None:
    engine = WordEngine()
    starts = TaskSlots(numbered(5), seed=1, group_size=3).starts(0, 4)
    found = play(engine, starts)
    assert [t.id for t in found] == [start.number for start in starts]
    assert all(t.stop is Stop.DONE and t.success and t.reward == 1.0 for t in found)
    assert len(engine.asked) == sum(len(t.turns) for t in found)
    assert sorted(engine.released) == list(range(len(starts)))


def test_turns_carry_the_exact_tokens_and_what_was_seen() -> None:
    [trajectory] = play(WordEngine(bias=100), TaskSlots(numbered(1), 0, 1).starts(0, 1))
    first, second = trajectory.turns[:2]
    assert first.observation == first.anchor == "You are at 0 of 2."
    assert (first.action, first.response_ids, first.logprobs) == ("right", (1, 3), (-0.5, -0.1))
    assert tuple(second.prompt_ids) == (18, 1, 3, 18)
    assert trajectory.final_anchor == "You are at 2 of 2."
    assert second.info["env"] == {"steps": 2}


@pytest.mark.parametrize(("size", "workers"), [(1, 0), (3, 0), (12, 0), (5, 2)])
def test_neither_slots_nor_workers_change_what_happens(size: int, workers: int) -> None:
    starts = TaskSlots(numbered(7), seed=5, group_size=3).starts(0, 4)
    expected = play(WordEngine(), starts, size=12)
    found = play(WordEngine(), starts, size=size, workers=workers)
    assert [[turn.action for turn in t.turns] for t in found] == [[turn.action for turn in t.turns] for t in expected]


def test_attempts_end_at_the_step_limit() -> None:
    found = play(WordEngine(bias=0), TaskSlots(numbered(3), 0, 2).starts(0, 3), max_turns=2)
    assert {t.stop for t in found if not t.success} == {Stop.STEP_LIMIT}
    assert max(len(t.turns) for t in found) == 2


def test_attempts_with_unparsable_responses_go_on_to_the_step_limit() -> None:
    engine = WordEngine(bias=0)
    engine.poll = lambda wait=True: [Response(engine.waiting.pop().key, (2,), (0.0,))]  # type: ignore[method-assign]
    found = play(engine, TaskSlots(numbered(2), 0, 1).starts(0, 2), max_turns=3)
    assert all(t.stop is Stop.STEP_LIMIT and [turn.valid for turn in t.turns] == [False] * 3 for t in found)


def test_attempts_end_where_the_context_is_full_and_where_the_engine_fails() -> None:
    full = play(WordEngine(bias=0), TaskSlots(numbered(2), 0, 1).starts(0, 2), limit=4)
    assert all(t.stop is Stop.CONTEXT_LIMIT and len(t.turns) == 2 for t in full)
    failed = play(WordEngine(bias=0, fault_at=4), TaskSlots(numbered(2), 0, 1).starts(0, 2))
    assert all(t.stop is Stop.ENGINE_FAULT and t.stop_detail == "out of ink" for t in failed)


@pytest.mark.parametrize(
    ("trouble", "workers", "stop"), [("raise", 0, "fault"), ("raise", 2, "fault"), ("die", 2, "fault"), ("hang", 2, "timeout")]
)
def test_a_broken_environment_ends_its_own_attempt_alone(trouble: str, workers: int, stop: str) -> None:
    starts = TaskSlots(numbered(6), seed=2, group_size=1).starts(0, 6)
    env = partial(Corridor, trouble)
    with Pool(env, 3, workers=workers, timeout=0.3 if trouble == "hang" else 30.0) as pool:
        found = Collector(pool, policy(WordEngine(bias=0)), max_turns=30).run(starts)
    broken = [t for t in found if int(t.task) % 2]
    assert len(found) == 6 and broken
    assert {t.stop for t in broken} == {Stop(f"environment {stop}")}
    healthy = [t for t in found if not int(t.task) % 2]
    # a worker that dies takes its other attempts along; they too say so
    assert all(t.stop in (Stop.DONE, Stop.STEP_LIMIT, Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT) for t in healthy)
    if trouble == "raise":
        assert all(t.stop in (Stop.DONE, Stop.STEP_LIMIT) for t in healthy)


def test_cancelling_ends_everything_between_turns() -> None:
    engine, turns = WordEngine(), []
    starts = TaskSlots(numbered(5), seed=1, group_size=3).starts(0, 4)
    found = play(engine, starts, hooks=Hooks(cancelled=lambda: len(turns) > 5, on_turn=turns.append))
    assert len(found) < len(starts) and any(t.stop is Stop.CANCELLED for t in found)


def test_a_group_shares_task_and_seed_and_its_members_differ_in_what_they_draw() -> None:
    starts = TaskSlots(numbered(9), seed=3, group_size=4).starts(0, 9)
    for place in range(9):
        members = [start for start in starts if start.group == place]
        assert len({start.task.id for start in members}) == len({start.env_seed for start in members}) == 1
        assert len({start.policy_seed for start in members}) == 4
    assert len({start.task.id for start in starts}) == 9
    own = TaskSlots(numbered(9), seed=3, group_size=4, own_seeds=True).starts(0, 1)
    assert len({start.env_seed for start in own}) == 4


def test_a_plan_is_the_same_wherever_it_is_entered() -> None:
    plan = TaskSlots(numbered(9), seed=3, group_size=2)
    assert plan.starts(0, 20)[14:18] == plan.starts(7, 2)


def test_a_panel_plays_every_task_once_in_order() -> None:
    starts = panel_starts(numbered(4), seed=0, repeats=2)
    assert [start.task.id for start in starts] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert len({start.policy_seed for start in starts}) == 8
    assert len({start.number for start in starts}) == 8


def test_an_evaluation_reports_what_the_environment_measures_and_the_mean_of_the_types() -> None:
    def attempt(task: str, won: bool, measures: object) -> Trajectory:
        return Trajectory(task, task, task, [Turn("a", info={"env": {"measures": measures}})], success=won)

    panel = TaskSet((Task(name, data={"task_type": name[0]}) for name in ("a1", "a2", "a3", "b1")), "panel")
    played = [
        attempt("a1", True, {"score": 1.0, "broken": float("nan")}),
        attempt("a2", False, {"score": 0.5}),
        attempt("a3", False, "no table"),
        Trajectory("b1", "b1", "b1", [], success=True),  # no turn: nothing was measured, which counts as 0
    ]
    result = evaluation_of(played, panel, 1)
    assert result.measures == {"score": 1.5 / 4}
    assert result.mean_of_types == pytest.approx((1 / 3 + 1) / 2) and result.success.rate == 0.5
    assert [outcome.get("measures") for outcome in result.outcomes()] == [{"score": 1.0}, {"score": 0.5}, None, None]
    assert result.metrics()["eval/measure/score"] == 1.5 / 4
    show_evaluation(Console(file=(out := StringIO()), width=100), result)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "score 0.375 on average" in lines and "mean of these 66.7 %, each counted once" in lines


def test_an_evaluation_with_repeats_has_the_interval_of_its_tasks() -> None:
    panel = TaskSet((Task(f"t{i}", data={"task_type": "even" if i % 2 == 0 else "odd"}) for i in range(10)), "panel")
    played = [Trajectory(i, f"{i}-{k}", f"t{i}", success=i < 5) for i in range(10) for k in range(10)]  # ten equal attempts at each
    result = evaluation_of(played, panel, 10)
    assert (result.success.count, result.success.n) == (50, 100)
    assert result.success.interval == pytest.approx(wilson(5, 10)) == (result.to_dict()["interval"][0], result.to_dict()["interval"][1])
    logged = result.metrics()
    assert (logged["eval/low"], logged["eval/high"]) == result.success.interval
    assert result.by_type["even"].interval == pytest.approx(wilson(3, 5)) and "(50/100; 95 %: 23.7–76.3)" in str(result.success)


def test_variants_of_one_scenario_count_together_in_an_evaluation() -> None:
    variants = TaskSet((Task(f"t{i}", data={"task_type": "x"}, cluster=f"scenario {i // 10}") for i in range(100)), "panel")
    played = [Trajectory(i, str(i), f"t{i}", success=i // 10 < 5) for i in range(100)]  # the variants of a scenario end alike
    result = evaluation_of(played, variants, 1)
    assert result.success.interval == pytest.approx(wilson(5, 10)) == result.by_type["x"].interval
    assert {outcome["cluster"] for outcome in result.outcomes()} == {f"scenario {k}" for k in range(10)}
    alone = evaluation_of(played, TaskSet((replace(task, cluster=None) for task in variants), "panel"), 1)
    assert alone.success.interval == pytest.approx(wilson(50, 100)) and "cluster" not in alone.outcomes()[0]
    one = evaluation_of(played, TaskSet((replace(task, cluster="the only one") for task in variants), "panel"), 1)
    assert one.success.interval == alone.success.interval  # a panel of one scenario: its tasks are counted


def test_dynamic_sampling_replaces_groups_without_signal() -> None:
    plan = TaskSlots(numbered(50), 0, 2)
    rewards = {0: [1.0, 1.0], 2: [0.0, 0.0], 3: [1.0, 1.0]}
    found = gathered(Dynamic(), plan, 3, attempts(rewards))
    assert sorted({t.group for t in found.trajectories}) == [1, 4, 5]
    assert plan.used == 6 and found.counts == {"dropped_groups": 3, "refills": 2}
    again = TaskSlots(numbered(50), 0, 2)
    hopeless = gathered(Dynamic(refills=4), again, 3, attempts({place: [0.0, 0.0] for place in range(100)}))
    assert hopeless.trajectories == [] and again.used == 15 and hopeless.counts["refills"] == 4


def test_reward_terms_are_added_and_logged_by_name() -> None:
    terms = [Term("brief", lambda turn, transition, trajectory: -len(turn.action), 0.1), Term("late", lambda a, b, t: len(t.turns))]
    [trajectory] = play(WordEngine(bias=100), TaskSlots(numbered(1), 0, 1).starts(0, 1), rewards=Rewards(10.0, terms))
    assert [turn.info["rewards"] for turn in trajectory.turns] == [
        {"environment": 0.0, "brief": -0.5, "late": 0.0},
        {"environment": 10.0, "brief": -0.5, "late": 1.0},
    ]
    assert trajectory.reward == pytest.approx(10.0)


@pytest.mark.parametrize("bad", [lambda: float("nan"), lambda: "much", lambda: None, lambda: 1 / 0, lambda: sys.exit(3)])
def test_a_broken_reward_term_costs_one_attempt_and_is_named(bad: object) -> None:
    def term(turn: Any, transition: Any, trajectory: Trajectory) -> Any:
        return bad() if trajectory.task == "1" else 1.0  # type: ignore[operator]

    found = play(WordEngine(bias=100), TaskSlots(numbered(3), 0, 1, shuffle=False).starts(0, 3), rewards=Rewards(1.0, [Term("bad", term)]))
    assert [trajectory.stop for trajectory in found] == [Stop.DONE, Stop.ENVIRONMENT_FAULT, Stop.DONE]
    assert found[1].stop_detail.startswith("reward term 'bad'") and "turn 0 of task 1" in found[1].stop_detail and not found[1].turns


def test_what_was_collected_becomes_rollouts_and_numbers() -> None:
    found = play(WordEngine(bias=30), TaskSlots(numbered(5), seed=1, group_size=3).starts(0, 4), max_turns=4)
    r = Rollouts.from_trajectories(found)
    assert len(r) == sum(len(t.turns) for t in found) and r.tokens is not None and (r.tokens == 2).all()
    counts = summarise(found)
    assert counts["turns"] == len(r) and 0 < counts["success"] < 1 and counts["stop/step limit"] > 0
    assert counts["invalid"] == pytest.approx(1 - r.valid.mean())


def test_a_policy_that_only_gives_reasons_to_stop_is_heard() -> None:
    class Quitter:
        pending = 0

        def __init__(self) -> None:
            self.ready: list[Answer] = []

        def begin(self, slot: int, start: Start, observation: Observation) -> None: ...

        def ask(self, slot: int) -> None:
            self.ready.append(Answer(slot, None, Stop.CANCELLED, "no"))
            self.pending = len(self.ready)

        def answers(self, wait: bool = True) -> list[Answer]:
            ready, self.ready, self.pending = self.ready, [], 0
            return ready

        def observe(self, slot: int, turn: Turn, transition: Transition) -> None: ...

        def end(self, slot: int) -> None: ...

    with Pool(Corridor, 2) as pool:
        found = Collector(pool, Quitter(), 5).run(panel_starts(numbered(3), 0))
    assert [t.stop_detail for t in found] == ["no"] * 3


def test_dynamic_sampling_takes_returns_that_differ_by_rounding_for_equal() -> None:
    def collect(starts: Sequence[Start]) -> list:
        parts = [[0.1, 0.1, 0.1], [0.3], [0.2, 0.1]] if starts[0].group == 0 else [[0.1], [0.3], [0.2]]
        return [Trajectory(start.group, start.number, turns=[Turn("a", r) for r in parts[start.number % 3]]) for start in starts]

    found = gathered(Dynamic(), TaskSlots(numbered(50), 0, 3), 1, collect)
    assert found.counts["dropped_groups"] == 1 and {trajectory.group for trajectory in found.trajectories} == {1}


def test_the_model_is_asked_in_the_same_order_however_quick_the_workers_are() -> None:
    starts = TaskSlots(numbered(8), seed=0, group_size=2).starts(0, 8)
    orders = []
    for late, workers in ((0, 2), (1, 2), (1, 3)):
        engine = WordEngine()
        play(engine, starts, size=8, env=partial(Slow, late), workers=workers)
        orders.append([(request.key, request.sequence, list(request.prompt_ids)) for request in engine.asked])
    assert orders[0] == orders[1] == orders[2]


def test_environments_play_while_the_model_thinks() -> None:
    engine = WordEngine()
    thinking: list[int] = []
    poll = engine.poll

    def counted(wait: bool = True) -> list[Response]:
        thinking.append(len(collector._answers._asked))
        return poll(wait)

    engine.poll = counted  # type: ignore[method-assign]
    with Pool(Corridor, 9, workers=2, timeout=5.0) as pool:
        collector = Collector(pool, policy(engine), max_turns=20)
        collector.run(TaskSlots(numbered(9), seed=0, group_size=1).starts(0, 9))
    assert max(thinking) == 3, "a third of the attempts are with their environments while the model is asked"
