"""A diagnosis of logs: what it says of small logs, what it must not depend on, and what it does not say."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnwise as tw
from turnwise.logs.best_turns import step_credit
from turnwise.logs.columns import common_form, turns_of
from turnwise.logs.findings import KINDS, LONGEST_TEXT, Place, diagnose
from turnwise.logs.findings import _members as members


def attempt(task, number, steps, won, **options):
    """An attempt from (observation, action) pairs, or (observation, action, info)."""
    turns = [tw.Turn(None, observation=step[0], action=step[1], info=dict(step[2]) if len(step) > 2 else {}) for step in steps]
    return tw.Trajectory(task, f"{task}/{number}", task=task, turns=turns, success=won, **options)


def log(tasks=4, attempts=12):
    """At the crossing, left wins and right loses; what comes before and after is the same."""
    return [
        attempt(f"t{task}", n, [("start", "go"), ("crossing", way), ("after", "stop")], way == "left")
        for task in range(tasks)
        for n in range(attempts)
        for way in ("left" if n % 3 else "right",)
    ]


def test_the_state_that_decides_is_named_with_its_better_action_and_what_it_costs():
    diagnosis = diagnose(log())
    first = diagnosis.findings[0]
    assert (first.kind, first.where, first.scope, first.task) == ("state", "crossing", "equal", None)
    assert (first.worse.text, first.worse.attempts, first.worse.won) == ("right", 16, 0)
    assert (first.better.text, first.better.attempts, first.better.won) == ("left", 32, 32)
    assert first.difference.value == 1.0 and first.gain.value == pytest.approx(100 / 3)
    assert 0 < first.gain.low < first.gain.high <= 34
    assert first.p < first.adjusted < 1e-6
    assert first.turns[0] == Place("t0/0", 1)
    assert [finding.kind for finding in diagnosis.findings] == ["state"], "the rest says the same"
    assert diagnosis.forks[0].where == "crossing" and diagnosis.forks[0].t == 1


def test_a_diagnosis_is_json():
    assert json.loads(json.dumps(diagnose(log()).to_json()))["findings"][0]["worse"]["text"] == "right"


def test_a_looping_attempt_counts_once_at_a_state():
    steps = [("crossing", "right"), ("wall", "back")] * 6
    trajectories = [attempt("t", n, [("crossing", "left")], True) for n in range(8)]
    trajectories += [attempt("t", n + 8, steps, False) for n in range(8)]
    finding = diagnose(trajectories).findings[0]
    assert (finding.where, finding.worse.attempts, finding.better.attempts) == ("crossing", 8, 8)
    assert finding.task == "t"


def test_what_a_call_returned_is_compared_with_the_other_results_of_the_same_call():
    trajectories = [
        attempt(f"t{n // 10}", n, [("start", "search[x]"), ("nothing" if n % 2 else f"passage {n}", "answer[y]")], n % 2 == 0)
        for n in range(60)
    ]
    finding = next(finding for finding in diagnose(trajectories).findings if finding.kind == "result")
    assert finding.worse.text == "nothing" and "search" in finding.where


def test_the_last_result_is_not_a_cause_of_the_outcome():
    trajectories = [
        attempt(f"t{n // 10}", n, [("start", "buy", {"tool": "buy", "result": f"score {'high' if n % 2 else 'low'}"})], n % 2 == 0)
        for n in range(60)
    ]
    assert diagnose(trajectories).findings == ()


def test_an_attempt_counts_once_if_a_tool_and_a_whole_action_have_one_name():
    turns = turns_of([attempt("t", 0, [("a", "ask"), ("b", "ask", {"tool": "retry"})], True)])
    every = np.arange(2)
    rows = members(turns, None, [(turns.tool, every), (turns.action_form, every)])
    counted = list(zip(rows.choice.tolist(), rows.attempt.tolist(), strict=True))
    assert len(counted) == len(set(counted)) == 3, "there, ask, retry"


def test_error_messages_that_precede_failure_are_one_template():
    def steps(n):
        info = {"tool": "fetch", "error": f"timeout after {n * 17} ms" if n % 2 else None, "result": "…"}
        return [(f"{n} a", "fetch", info), (f"{n} b", "stop")]

    findings = diagnose([attempt(f"t{n // 10}", n, steps(n), n % 2 == 0) for n in range(60)]).findings
    errors = [finding for finding in findings if finding.kind in ("error", "state")]
    assert any("timeout after *" in finding.worse.text + finding.where for finding in errors)


def test_waste_is_counted_by_kind_and_each_turn_once():
    error = {"error": "bad argument"}
    steps = [
        ("a", "x", error),
        ("a", "x", error),  # right after an error, the same call
        ("b", "go"),
        ("c", "back"),
        ("b", "go"),  # again from b to c
        ("c", "look"),
        ("d", "ask", {"result": "same"}),
        ("e", "ask", {"result": "same"}),  # the same call and result, elsewhere
        ("f", "stop"),
    ]
    diagnosis = diagnose([attempt("t", 0, steps, False), attempt("t", 1, [("a", "stop")], True)])
    waste = {waste.kind: waste for waste in diagnosis.waste}
    assert {kind: (value.turns, value.attempts, value.won) for kind, value in waste.items()} == {
        "loop": (1, 1, 0),
        "repeated call": (1, 1, 0),
        "ignored error": (1, 1, 0),
    }
    assert waste["loop"].examples == (Place("t/0", 4),)
    share = waste["loop"].share
    assert share.value == pytest.approx(0.1) and share.low < 0.1 < share.high


def test_what_cannot_be_said_is_listed_with_the_attempts_that_it_needs():
    diagnosis = diagnose(log(tasks=1, attempts=4))
    assert diagnosis.findings == ()
    states = next(entry for entry in diagnosis.unsaid if KINDS["state"] in entry.what)
    assert states.attempts is not None and 5 <= states.attempts <= 40
    assert diagnose(log(tasks=1, attempts=3 * states.attempts)).findings


def test_tasks_that_always_end_alike_decide_nothing():
    diagnosis = diagnose([replace(trajectory, success=True) for trajectory in log()])
    assert diagnosis.outcome == "none" and diagnosis.findings == () and diagnosis.forks == ()
    assert "4 of 4 tasks" in {entry.what for entry in diagnosis.unsaid}


def test_returns_count_where_success_does_not_vary():
    trajectories = [replace(trajectory, success=False) for trajectory in log()]
    for trajectory in trajectories:
        trajectory.turns[-1].reward = 0.9 if trajectory.turns[1].action == "left" else 0.2
    balanced = [trajectory for n, trajectory in enumerate(trajectories) if n % 3 or n % 12 == 0]
    assert diagnose(balanced).outcome in ("return above the task's median", "none")
    mixed = [trajectory for n, trajectory in enumerate(trajectories) if n % 3 != 1]
    diagnosis = diagnose(mixed)
    assert diagnosis.outcome == "return above the task's median" and diagnosis.findings[0].worse.text == "right"


def test_attempts_that_the_machinery_ended_are_left_out():
    trajectories = [*log(), attempt("t0", 99, [("crossing", "left")], False, stop=tw.Stop.ENGINE_FAULT), attempt("t0", 98, [], False)]
    diagnosis = diagnose(trajectories)
    assert diagnosis.attempts == 48 and any("2 attempts" in entry.what for entry in diagnosis.unsaid)


@pytest.mark.parametrize("trajectories", [[], [attempt("t", 0, [("a", "b")], True)], [attempt("t", 0, [], True)]])
def test_next_to_nothing_gives_no_finding(trajectories):
    assert diagnose(trajectories).findings == ()


def test_texts_are_bounded():
    trajectories = log()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turn.observation += " word" * 5000
            turn.action += " word" * 5000
    diagnosis = diagnose(trajectories)
    assert diagnosis.findings and max(len(finding.where) for finding in diagnosis.findings) <= LONGEST_TEXT + 2
    assert len(json.dumps(diagnosis.to_json())) < 50_000


def test_a_common_form_has_neither_numbers_nor_ids():
    assert common_form("take  mug 2 from\nshelf 11") == common_form("take mug 3 from shelf 4") == "take mug # from shelf #"
    assert common_form("at 12:30:05, id 3f2a9c1e-aaaa-4bcd-9e1f-123456789abc") == "at #, id #"


turn = st.tuples(st.sampled_from("abcd"), st.sampled_from(["x 1", "x 2", "y"]), st.sampled_from([{}, {"error": "e 1"}, {"tool": "z"}]))
logs = st.lists(st.tuples(st.sampled_from("pqr"), st.lists(turn, min_size=1, max_size=5), st.booleans()), min_size=2, max_size=30)


@settings(max_examples=40, deadline=None)
@given(logs, st.randoms(use_true_random=False))
def test_the_order_of_attempts_changes_nothing(entries, random):
    trajectories = [attempt(task, number, steps, won) for number, (task, steps, won) in enumerate(entries)]
    shuffled = random.sample(trajectories, len(trajectories))
    assert diagnose(shuffled, level=1.0) == diagnose(trajectories, level=1.0)


@settings(max_examples=40, deadline=None)
@given(logs)
def test_the_names_of_tasks_change_nothing(entries):
    """The new names sort in the opposite order; sums over tasks then round differently."""
    names = {"p": "3", "q": "2", "r": "1"}
    one = diagnose([attempt(task, n, steps, won) for n, (task, steps, won) in enumerate(entries)], level=1.0)
    other = diagnose([attempt(names[task], n, steps, won) for n, (task, steps, won) in enumerate(entries)], level=1.0)
    assert one.compared == other.compared and [waste.turns for waste in one.waste] == [waste.turns for waste in other.waste]

    def said(diagnosis):
        return sorted(
            (f.kind, f.worse.text, f.worse.attempts, f.worse.won, round(f.p, 9), round(f.gain.value, 9)) for f in diagnosis.findings
        )

    assert said(one) == said(other)


def test_the_credit_of_a_step_is_gigpos_with_winning_as_the_reward_where_a_log_has_none():
    turns = turns_of(log(tasks=1))
    step = step_credit(turns)
    left = np.array([trajectory.turns[1].action == "left" for trajectory in turns.trajectories])
    assert step[1::3][~left].max() < 0 < step[1::3][left].min()
    rewarded = [replace(t, turns=[replace(turn, anchor=turn.observation) for turn in t.turns]) for t in turns.trajectories]
    for trajectory in rewarded:
        trajectory.turns[-1].reward = float(trajectory.success)
    rollouts = tw.Rollouts.from_trajectories(rewarded)
    assert step == pytest.approx(tw.credit.compute("gigpo", rollouts, episode_weight=0.0), abs=1e-5)


def test_a_turn_without_a_tool_in_its_log_has_the_first_word_of_its_action():
    turns = turns_of([attempt("t", 0, [("a", "go to shelf 1"), ("b", "search[x y]"), ("c", "", {"tool": None})], True)])
    assert [turns.names.texts[code] for code in turns.tool] == ["go", "search", "(text)"]
