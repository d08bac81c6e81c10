"""BFCL's multi-turn tasks: calls without eval, fresh objects per attempt, and the verdicts of the package's own checker."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from needing import ready

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs.base import Transition
from turnwise.util.errors import TurnwiseError
from turnwise_envs.bfcl import state
from turnwise_envs.bfcl.benchmark import CATEGORIES, Entry, entries, held_out, scenarios, simulator
from turnwise_envs.bfcl.calls import DONE, written
from turnwise_envs.bfcl.env import BfclEnv
from turnwise_envs.bfcl.players import Heard, random_call
from turnwise_envs.bfcl.scoring import solution
from turnwise_envs.bfcl.world import offered

ready("bfcl")


@pytest.fixture
def env() -> Iterator[BfclEnv]:
    made = BfclEnv()
    yield made
    made.close()


def task(category: str = "base", number: int = 0, **more: Any) -> Task:
    return Task(f"{category}-{number}", "train", {"category": category, "number": number, **more})


def play(env: BfclEnv, wanted: Task, actions: Sequence[str]) -> list[Transition]:
    env.reset(wanted)
    found = []
    for action in actions:
        found.append(env.step(action))
        if found[-1].done:
            break
    return found


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.long)])  # 1: all 800
def test_attempts_of_the_expert_win_and_idle_ones_do_not(step: int) -> None:
    env = BfclEnv(reward="requests")
    for wanted in [*env.tasks("train")[::step], *env.tasks("valid")[::step]]:
        steps = play(env, wanted, env.expert(wanted))
        assert steps[-1].done and steps[-1].success and sum(step.reward for step in steps) == pytest.approx(1)
        steps = play(env, wanted, [DONE] * 20)
        assert steps[-1].done and not steps[-1].success and not any(step.reward for step in steps)


def official(found: Entry, turns: list[list[str]], mark: str) -> bool:
    """The verdict of the package's own checker, which evaluates texts: here they are ours. It keeps objects in global variables."""
    import bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils as kept
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    row = {
        "initial_config": dict(found.config),
        "involved_classes": list(found.classes),
        "id": f"multi_turn_{found.category}_{found.number}",
    }
    before = set(vars(kept))
    try:
        return bool(
            multi_turn_checker([[[call] for call in calls] for calls in turns], list(map(list, found.gold)), row, "", mark)["valid"]
        )
    finally:
        for name in set(vars(kept)) - before:
            del vars(kept)[name]


def spoilt(found: Entry, chance: random.Random) -> list[list[str]]:
    """The solution with one change, which may or may not matter."""
    turns = [[written(*call) for call in solution(found.category, found.number, place)] for place in range(len(found.gold))]
    places = [(i, j) for i, calls in enumerate(turns) for j in range(len(calls))]
    (i, j), (k, m) = chance.choice(places), chance.choice(places)
    how = chance.randrange(5)
    if how == 0:
        turns[i].pop(j)
    elif how == 1:
        turns[i].insert(j, turns[i][j])
    elif how == 2:
        turns[i][j], turns[k][m] = turns[k][m], turns[i][j]
    elif how == 3:
        heard = Heard()
        heard.hear(" ".join(found.requests))
        turns[i].insert(j, next(call for _ in range(99) if (call := random_call(offered(found), heard, chance)) != DONE))
    else:
        turns[(i + 1) % len(turns)].insert(0, turns[i].pop(j))
    return turns


def test_verdicts_are_those_of_the_package(env: BfclEnv) -> None:
    chance = random.Random(11)
    verdicts = []
    for category in CATEGORIES:
        for found in chance.sample(entries(category), 10):
            turns = spoilt(found, chance)
            steps = play(env, task(category, found.number), [action for calls in turns for action in (*calls, DONE)])
            verdicts.append(steps[-1].success)
            assert verdicts[-1] == official(found, turns, f"m{len(verdicts)}"), (found.id, turns)
    assert 5 < sum(verdicts) < 35


def test_scenarios_never_cross_the_splits() -> None:
    both = {split: list(tw.tasks("bfcl", split=split)) for split in ("train", "valid")}
    assert {split: len(found) for split, found in both.items()} == tw.envs.describe("bfcl")[0]["splits"] == {"train": 620, "valid": 180}
    assert not {one.data["scenario"] for one in both["train"]} & {one.data["scenario"] for one in both["valid"]}
    texts = {
        split: {said for one in found for said in entries(one.data["category"])[one.data["number"]].requests if said}
        for split, found in both.items()
    }
    starts = {
        split: {
            json.dumps([name, config], sort_keys=True)
            for one in found
            for name, config in entries(one.data["category"])[one.data["number"]].config.items()
            if config
        }
        for split, found in both.items()
    }
    assert not texts["train"] & texts["valid"] and not starts["train"] & starts["valid"]
    assert len(set(scenarios())) == 174 and sum(map(held_out, range(200))) == 45


def test_a_function_that_was_held_back_appears_with_its_request(env: BfclEnv) -> None:
    first = env.reset(task("miss_func", 0)).text
    assert "\nsort(" not in first and "\ngrep(" in first
    steps = play(env, task("miss_func", 0), env.expert(task("miss_func", 0)))
    shown = [step.observation.text for step in steps if "sort(file_name: str)" in step.observation.text]
    assert len(shown) == 1 and shown[0].startswith("More functions:") and "'final_report.pdf'" in shown[0]


def test_a_request_that_starts_in_the_middle_has_what_led_there() -> None:
    env = BfclEnv(single=True, classes="GorillaFileSystem")
    found = env.tasks("train")
    assert {one.data["classes"][0] for one in found} == {"GorillaFileSystem"}
    for one in found[::9]:
        text = env.reset(one).text
        assert text.count("User: ") == one.data["request"] + 1
        assert BfclEnv(single=True, earlier=False).reset(one).text.count("User: ") == 1
        assert play(env, one, env.expert(one))[-1].success
        assert not play(env, one, [DONE])[-1].success


def test_descriptions_come_in_four_sizes() -> None:
    sizes = {style: len(BfclEnv(tools=style).reset(task()).text) for style in ("none", "signatures", "short", "schemas")}
    assert list(sizes.values()) == sorted(sizes.values()) and sizes["signatures"] < 1500 < sizes["short"] < 3000 < sizes["schemas"]


def test_partial_rewards_stop_at_the_first_request_that_is_not_met() -> None:
    for end in (False, True):
        env = BfclEnv(reward="requests", end_on_failure=end)
        plan = env.expert(task())
        plan.remove("sort(file_name='final_report.pdf')")
        steps = play(env, task(), plan)
        assert [step.reward for step in steps if step.reward] == [0.25, 0.25]
        assert steps[-1].done and not steps[-1].success and steps[-1].info["measures"] == {"requests met": 0.5}
        assert (len(steps) < len(plan)) == end


def test_an_anchor_is_the_state_and_not_the_path(env: BfclEnv) -> None:
    def anchor(*actions: str) -> Any:
        return play(env, task(), actions)[-1].observation.anchor

    assert anchor("mkdir(dir_name='a')", "pwd()") == anchor("pwd()", "mkdir(dir_name='a')", "pwd()")
    assert anchor("pwd()") != anchor("mkdir(dir_name='a')", "pwd()")
    assert anchor("pwd()") != anchor("done", "pwd()")
    assert anchor("pwd()") != anchor("ls()")


# -- faults ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        *("__init__()", "_load_scenario(scenario={})", "_navigate_to_directory(path='/')", "os.system(command='true')", "__class__()"),
        *("execute_multi_turn_func_call()", "objects()", "root()", "cd.__globals__()", "cd(self='x', folder='y')", "cd(folder=5)"),
        *("cd()", "cd(folder='a', path='b')", "cd('a', 'b')", "cd('a', folder='b')", "tail(file_name='a', lines='many')"),
    ],
)
def test_only_documented_functions_with_fitting_arguments_are_called(env: BfclEnv, action: str) -> None:
    before = env.reset(task())
    rows = state.table(env._world.objects)
    found = env.step(action)
    assert not found.done and found.observation.text != before.text and "\n" not in found.observation.text
    assert state.table(env._world.objects) == rows and env._results == []


def test_arguments_that_would_compute_for_hours_are_rejected(env: BfclEnv) -> None:
    number = next(found.number for found in entries("base") if "MathAPI" in found.classes)
    hostile = [
        "power(base=9, exponent=99999999)",
        "square_root(number=2, precision=100000000)",
        "round_number(number=5, decimal_places=-99999999)",
    ]
    for step in play(env, task(number=number), hostile):
        assert "at most 1000" in step.observation.text
    exact = play(env, task(number=number), ["square_root(number=2, precision=30)", "power(base=2, exponent=1000)"])
    assert "1.41421356237309504880168872421" in exact[0].observation.text and str(2**1000) in exact[1].observation.text


def test_a_function_that_raises_is_an_observation(env: BfclEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, folder: str) -> None:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(simulator("GorillaFileSystem"), "cd", broken)
    steps = play(env, task(), ["cd(folder='document')", "pwd()"])
    assert steps[0].observation.text == "Error during execution: disk on fire"
    assert "workspace" in steps[1].observation.text


def test_a_huge_result_is_cut(env: BfclEnv) -> None:
    steps = play(env, task(), ["touch(file_name='big')", f"echo(content='{'x' * 90_000}', file_name='big')", "cat(file_name='big')"])
    assert len(steps[-1].observation.text) < 4200 and "[cut: 90,0" in steps[-1].observation.text


@pytest.mark.parametrize(
    "grow",
    [
        lambda step: ["mkdir(dir_name='a')", "cp(source='a', destination='a')"],
        lambda step: ["mkdir(dir_name='a')", "cd(folder='a')"],
        lambda step: (
            [f"cp(source='d{step}', destination='e')", f"mkdir(dir_name='d{step + 1}')"]
            + [f"mv(source='{name}', destination='d{step + 1}')" for name in (f"d{step}", "e")]
        ),
    ],
    ids=["inside itself", "deep", "doubled"],
)
def test_a_file_system_that_cannot_be_walked_ends_the_attempt(env: BfclEnv, grow: Any) -> None:
    env.reset(task())
    env.step("mkdir(dir_name='d0')")
    env.step("touch(file_name='x')")
    for step in range(150):
        found = env.step("\n".join(grow(step)))
        if found.done:
            break
    assert found.done and not found.success and found.reward == 0
    assert found.info["reason"] in (
        "a folder contains itself",
        "its folders are more than 100 levels deep",
        "it has more than 20,000 entries",
    )


def test_attempts_do_not_touch_each_other_or_the_package() -> None:
    """Long contexts put objects of the package's modules into the state, and some functions set the precision of the process."""
    import decimal

    import mpmath
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context

    def constants() -> str:
        kept = {name: value for name, value in vars(long_context).items() if name.isupper() and name != "LONG_WEATHER_EXTENSION"}
        return repr((kept, decimal.getcontext().prec, mpmath.mp.dps))

    before = constants()
    env, other = BfclEnv("long_context"), BfclEnv("long_context")
    chance = random.Random(1)
    for found in chance.sample(entries("long_context"), 6):
        wanted = task("long_context", found.number)
        plan = env.expert(wanted)
        env.reset(wanted)
        for _ in range(10):
            env.step(next(call for _ in range(99) if (call := env.random_action(chance.randrange(2**30))) != DONE))
        other.reset(wanted)
        assert [other.step(action) for action in plan][-1].success
    assert constants() == before


def test_a_state_with_shared_files_is_restored_with_them(env: BfclEnv) -> None:
    start = ["mkdir(dir_name='a')", "cd(folder='a')", "touch(file_name='f')", "cd(folder='..')", "cp(source='a', destination='b')"]
    play(env, task(), [*start, "cd(folder='b')"])
    kept = env.snapshot()
    assert kept is not None and len(kept) < 20_000
    other = BfclEnv()
    other.restore(kept)
    for one in (env, other):  # the package copies a folder, but not the files in it
        steps = [
            one.step(action) for action in ("echo(content='new', file_name='f')", "cd(folder='..')", "cd(folder='a')", "cat(file_name='f')")
        ]
        assert steps[-1].observation.text == '{"file_content": "new"}'
    assert env.snapshot() == other.snapshot()


def test_the_expert_has_no_advice_once_the_task_is_lost(env: BfclEnv) -> None:
    play(env, task(), ["ls()"])
    assert env.expert_action() == "cd(folder='document')"
    play(env, task(), ["rm(file_name='document')"])
    assert env.expert_action() is None


def test_tasks_that_do_not_exist_are_named() -> None:
    for data in ({}, {"category": "base", "number": 200}, {"category": "other", "number": 1}):
        with pytest.raises(TurnwiseError, match="task"):
            BfclEnv().reset(Task("x", "train", data))
