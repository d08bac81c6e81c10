"""Programs as environments: calls become turns of trajectories, with rewards, anchors, limits and stop reasons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import program_cases
import pytest
from conftest import ROOT
from endpoint_cases import tiny
from openai_server import serving
from processes import gone
from program_cases import starts

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.agent import Agent, AgentSettings
from turnwise.agent.chat import Chat
from turnwise.collect.call_trees import SIDE, text_of
from turnwise.collect.collector import Collector
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.programs import ProgramCollector, read_worth
from turnwise.data.attempts import Branch, Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.envs.check import check
from turnwise.envs.pool import Pool
from turnwise.envs.program.client import Outcome
from turnwise.envs.program.env import ProgramEnv, content_place
from turnwise.envs.program.running import filled, read_result
from turnwise.learn.learner import Learner
from turnwise.learn.packing import pack
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_trajectories
from turnwise.util.terminal import Once

PROGRAMS = str(ROOT / "tests" / "support" / "program_cases.py")
TASK = {"prompt": "say something"}


@cache
def engine() -> NativeEngine:
    model, tokenizer = tiny()
    return NativeEngine(model, tokenizer, stop_token_ids=Chat(tokenizer).stop_ids, cache_memory=1 << 24)


def collector(function: Callable[..., Any] | None = None, whole: bool = False, **options: Any) -> ProgramCollector:
    calls = options.get("max_calls", 50)
    env = ProgramEnv(function=function, file=[TASK], **options) if function else ProgramEnv(file=[TASK], **options)
    return ProgramCollector(env, engine(), Chat(tiny()[1]), Sampling(max_tokens=6), calls, whole=whole)


def played(function: Callable[..., Any] | None = None, n: int = 1, **options: Any) -> list[Trajectory]:
    return collector(function, **options).run(starts(n))


def test_a_function_is_played_and_its_calls_are_turns() -> None:
    found = played(program_cases.two_turns, 3)
    assert [trajectory.id for trajectory in found] == [0, 1, 2] and {trajectory.task for trajectory in found} == {"t"}
    for trajectory in found:
        first, second = trajectory.turns
        assert (first.reward, second.reward, trajectory.stop, trajectory.success) == (0.25, 0.5, Stop.DONE, False)
        assert (first.observation, second.observation) == ("say something", "go on")
        assert list(second.prompt_ids)[: len(first.prompt_ids) + len(first.response_ids)] == [*first.prompt_ids, *first.response_ids]
        assert first.info["notes"] == ["a first word"] and first.version == 0


def test_learner_and_engine_agree_on_what_a_program_did() -> None:
    found = played(program_cases.two_turns, 2)
    packed = pack(found)
    said = [logprob for trajectory in found for turn in trajectory.turns for logprob in turn.logprobs]
    np.testing.assert_allclose(Learner(tiny()[0]).logprobs(packed), said, atol=1e-4)


def test_an_async_function_returns_an_outcome() -> None:
    (trajectory,) = played(program_cases.later)
    assert (trajectory.reward, trajectory.success) == (2.0, True)
    assert trajectory.turns[-1].info["env"] == {"measures": {"words": 3.0}}


@pytest.mark.parametrize(
    ("function", "options", "stop", "detail", "turns"),
    [
        ("crashes", {}, Stop.ENVIRONMENT_FAULT, "the program is broken", 1),
        ("crashes", {"crash_reward": -1.0}, Stop.DONE, "the program is broken", 1),
        ("hangs", {"time_limit": 0.4}, Stop.ENVIRONMENT_TIMEOUT, "did not end within 0.4 s", None),
        ("silent", {}, Stop.ENVIRONMENT_FAULT, "never called the model", 0),
        ("talkative", {"max_calls": 3}, Stop.STEP_LIMIT, "more than 3 calls", 3),
        ("talkative", {"max_tokens": 10}, Stop.CONTEXT_LIMIT, "more than 10 tokens", None),
    ],
)
def test_an_attempt_that_goes_wrong_ends_with_a_stop_reason(
    function: str, options: dict[str, Any], stop: Stop, detail: str, turns: int | None
) -> None:
    found = played(getattr(program_cases, function), **options)
    assert {trajectory.stop for trajectory in found} == {stop} and detail in found[0].stop_detail
    assert turns is None or sum(len(trajectory.turns) for trajectory in found) == turns
    assert sum(len(turn.response_ids) for trajectory in found for turn in trajectory.turns) <= options.get("max_tokens", 99)
    if "crash_reward" in options:
        assert found[0].reward == -1.0


def test_sub_agents_and_a_summary_are_lines_of_their_own_and_each_token_is_in_one_of_them() -> None:
    found = played(program_cases.family, 2)
    assert [len(trajectory.turns) for trajectory in found] == [2, 2, 1, 1, 1] * 2
    assert [trajectory.id for trajectory in found] == [0, SIDE, SIDE + 1, SIDE + 2, SIDE + 3, 1, SIDE + 4, SIDE + 5, SIDE + 6, SIDE + 7]
    for attempt in (found[:5], found[5:]):
        plan, first, second, summary, after = attempt
        assert [turn.info["call"]["number"] for turn in plan.turns] == [0, 4]
        assert [turn.info["call"]["parent"] for turn in plan.turns] == [None, 0]
        assert [turn.info["call"]["number"] for line in (first, second, summary, after) for turn in line.turns] == [1, 2, 3, 5, 6]
        assert plan.turns[1].anchor == "after both"
        assert all(trajectory.turns[-1].reward == 1.0 and trajectory.success for trajectory in attempt), "all have contributed"
    (whole, _) = played(program_cases.family, 2, whole=True)
    sampled = [list(turn.response_ids) for turn in whole.turns]
    taken = sorted((turn.info["call"]["number"], list(turn.response_ids)) for line in found[:5] for turn in line.turns)
    assert [ids for _, ids in taken] == sampled, "the same seeds give the same calls, and each is in exactly one line"
    packed = pack(found)
    assert len(packed.target) == sum(len(turn.response_ids) for line in found for turn in line.turns)
    batch = Batch.of(found, {"t": starts(1)[0].task})
    assert np.isfinite(tw.credit.compute("gigpo", batch.rollouts)).all()


def test_an_attempt_can_be_one_trajectory_with_all_its_calls() -> None:
    (trajectory,) = played(program_cases.family, lines="attempt")
    assert [turn.info["call"]["number"] for turn in trajectory.turns] == list(range(7))
    assert [turn.reward for turn in trajectory.turns] == [0.0] * 6 + [1.0]


def test_the_outcome_can_go_to_the_last_call_alone() -> None:
    found = played(program_cases.family, outcome="last")
    assert [trajectory.reward for trajectory in found] == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_the_same_game_is_the_same_as_a_program_and_as_an_environment() -> None:
    tokenizer = tiny()[1]
    tasks = tw.tasks("numberline")[:3]
    planned = [Start(task, group, 2 * group + k, 0, 10 * group + k) for group, task in enumerate(tasks) for k in range(2)]
    settings = AgentSettings(context="full", prompt="text", parse="whole", show_actions=False)
    agent = Agent(tokenizer, settings)
    engine().refresh()
    with Pool("numberline", 6) as pool:
        policy = ModelPolicy(engine(), agent.context, agent.read, Sampling(max_tokens=4))
        stepped = Collector(pool, policy, 6).run(planned)
    engine().refresh()
    env = ProgramEnv(function=program_cases.walk, file=[{"id": "unused"}])
    called = ProgramCollector(env, engine(), agent.chat, Sampling(max_tokens=4), 6).run(planned)
    assert len(called) == len(stepped) == 6
    for one, other in zip(stepped, called, strict=True):
        assert (one.id, one.group, one.task, one.success) == (other.id, other.group, other.task, other.success)
        assert len(one.turns) == len(other.turns)
        for turn, call in zip(one.turns, other.turns, strict=True):
            assert list(turn.prompt_ids) == list(call.prompt_ids) and list(turn.response_ids) == list(call.response_ids)
            assert (turn.anchor, turn.observation, turn.reward) == (call.anchor, call.observation, call.reward)
            np.testing.assert_allclose(turn.logprobs, call.logprobs, atol=1e-4)


def test_anchors_are_chosen() -> None:
    def place(call: dict[str, Any]) -> str:
        return f"{len(call['messages'])} messages"

    anchors = {}
    for rule in ("messages", "conversation", "own", place):
        found = played(program_cases.two_turns, 2, anchor=rule)
        anchors[rule] = [[turn.anchor for turn in trajectory.turns] for trajectory in found]
    assert anchors["messages"] == [["say something", "go on"]] * 2
    assert anchors[place] == [["1 messages", "3 messages"]] * 2
    one, other = anchors["conversation"]
    assert one[0] == other[0] and one[1] != other[1], "what was said differs"
    assert len({key for line in anchors["own"] for key in line}) == 4


def test_a_reward_function_sees_the_calls_and_may_reward_each() -> None:
    def judged(task: dict[str, Any], calls: list[dict[str, Any]], result: Any) -> dict[str, Any]:
        assert calls[1]["messages"][-1]["content"] == "go on" and calls[1]["parent"] == 0
        return {"reward": result, "success": True, "calls": {0: 0.125}, "calls_made": len(calls)}

    (trajectory,) = played(program_cases.two_turns, reward=judged)
    assert [turn.reward for turn in trajectory.turns] == [0.375, 0.5] and trajectory.success
    assert trajectory.turns[-1].info["env"] == {"measures": {"calls_made": 2.0}}


def test_a_reward_function_that_fails_is_a_fault_that_shows_its_lines() -> None:
    def wrong(task: dict[str, Any], calls: list[Any]) -> float:
        return float("nan")

    messages: list[Any] = []
    work = collector(program_cases.two_turns, reward=wrong)
    work.hooks = Hooks(on_fault=lambda trajectory, result: messages.append(result.message))
    (trajectory,) = work.run(starts(1))
    assert trajectory.stop is Stop.ENVIRONMENT_FAULT and not trajectory.turns and "finite number" in messages[0]


@pytest.mark.parametrize(("end", "success"), [(1.0, True), (0.5, False), (None, True), (Outcome(0.0, True), True)])
def test_the_reward_at_the_end_decides_about_success_and_without_one_the_sum(end: Any, success: bool) -> None:
    def solve(task: dict[str, Any], client: Any) -> Any:
        program_cases.ask(client, [program_cases.user("hello")])
        client.reward(-0.5 if end == 1.0 else 2.0)
        return end

    (trajectory,) = played(solve)
    assert trajectory.success is success


COMMAND = """
import json, os, sys, urllib.request
def post(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))
task = json.loads(os.environ["TURNWISE_TASK"])
post("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]})
post("/reward", {"value": 0.125})
print("done with", task["id"])
"""  # noqa: E501


@pytest.mark.parametrize(
    ("end", "options", "wanted"),
    [
        ("print(0.5)", {}, (Stop.DONE, 0.625, False)),
        ('print(\'{"reward": 0.5, "success": true}\')', {}, (Stop.DONE, 0.625, True)),
        ("", {}, (Stop.DONE, 0.125, False)),
        ("sys.exit(0)", {"result": "exit code"}, (Stop.DONE, 1.125, True)),
        ("sys.exit(2)", {"result": "exit code"}, (Stop.DONE, 0.125, False)),
        ("sys.exit('no luck')", {}, (Stop.ENVIRONMENT_FAULT, None, False)),
        ("print('nothing')", {"result": "printed"}, (Stop.ENVIRONMENT_FAULT, None, False)),
    ],
)
def test_a_command_is_played_and_its_end_is_the_reward(end: str, options: dict[str, Any], wanted: tuple[Stop, float | None, bool]) -> None:
    command = [sys.executable, "-I", "-S", "-c", COMMAND + end, "{prompt}"]
    (trajectory,) = played(command=command, **options)
    assert (trajectory.stop, trajectory.success) == (wanted[0], wanted[2]), trajectory.stop_detail
    assert trajectory.turns[0].observation == "say something"
    assert wanted[1] is None or trajectory.reward == wanted[1]


def test_attempts_without_any_reward_are_noticed_once() -> None:
    def quiet(task: dict[str, Any], client: Any) -> None:
        program_cases.ask(client, [program_cases.user(task["prompt"])], temperature=0.5)

    def messages(*works: ProgramCollector) -> list[str]:
        found: list[str] = []
        say = Once(found.append)
        for work in works:
            work.say = say
            work.run(starts(2))
        return found

    own, returned = messages(collector(quiet), collector(quiet))  # two iterations
    assert "temperature" in own and "recipe's count" in own
    assert returned.endswith("the program returned nothing, and no reward was posted: the attempt is worth 0")
    unpaid = COMMAND.replace('post("/reward", {"value": 0.125})', "")
    (printed,) = messages(collector(command=[sys.executable, "-I", "-S", "-c", unpaid, "{prompt}"]))
    assert "is not a number or a JSON object: 'done with t'" in printed
    assert messages(collector(program_cases.two_turns), collector(command=[sys.executable, "-I", "-S", "-c", COMMAND, "{prompt}"])) == []


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    child = "import subprocess, time; child = subprocess.Popen(['sleep', '60'])"
    end = f"{child}\nopen({str(mark)!r}, 'w').write(f'{{child.pid}}.')\ntime.sleep(60)"
    work = collector(command=[sys.executable, "-I", "-S", "-c", COMMAND + end, "{prompt}"])
    work.hooks = Hooks(cancelled=lambda: mark.exists() and mark.read_text().endswith("."))
    (trajectory,) = work.run(starts(1))
    assert trajectory.stop is Stop.CANCELLED and len(trajectory.turns) == 1
    assert gone(int(mark.read_text()[:-1]))


# A child in a session of its own whose parent has ended: it writes its number, and stays. So does a child of that.
DAEMON = """
import os, sys, time
def daemon(path, more):
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    if more:
        daemon(path + "2", False)
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    for number in (0, 1, 2):
        os.close(number)
    time.sleep(600)
    os._exit(0)
daemon(sys.argv[1], True)
while not (os.path.exists(sys.argv[1]) and os.path.exists(sys.argv[1] + "2")):
    time.sleep(0.01)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="adopted processes are a matter of Linux")
@pytest.mark.parametrize("end", ["returns", "cancelled", "run killed"])
def test_a_daemon_that_a_command_starts_ends_with_its_attempt(tmp_path: Path, end: str) -> None:
    mark = tmp_path / "daemon"
    after = "" if end == "returns" else "time.sleep(600)"
    words = [sys.executable, "-I", "-S", "-c", DAEMON + after, str(mark)]
    script = (
        "import sys; from turnwise.envs.program.running import CommandAttempt; from turnwise.envs.program.client import Client\n"
        "CommandAttempt(sys.argv[1:], {}, Client('http://127.0.0.1:1/v1', 'k'), 'auto', None).run()"
    )
    if end == "run killed":
        run = subprocess.Popen([sys.executable, "-c", script, *words], cwd=ROOT)
        while not (mark.exists() and Path(f"{mark}2").exists()):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
        run.wait()
    else:
        work = collector(command=words)
        work.hooks = Hooks(cancelled=lambda: end == "cancelled" and mark.exists() and Path(f"{mark}2").exists())
        work.run(starts(1))
    pids = [int(Path(f"{mark}{more}").read_text()) for more in ("", "2")]
    try:
        assert gone(*pids)
    finally:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def test_a_command_that_cannot_be_started_is_a_fault_whatever_its_result_is() -> None:
    (trajectory,) = played(command=["no-such-program"], result="exit code")
    assert trajectory.stop is Stop.ENVIRONMENT_FAULT and "no-such-program cannot be started: " in trajectory.stop_detail


def test_a_command_that_ends_by_a_signal_says_which() -> None:
    (trajectory,) = played(command=[sys.executable, "-I", "-S", "-c", COMMAND + "os.kill(os.getpid(), 11)", "{prompt}"])
    assert trajectory.stop is Stop.ENVIRONMENT_FAULT and "signal 11" in trajectory.stop_detail


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"reward": 1, "calls": [1]}, "calls = [1]"),
        ({"reward": 1, "calls": 3}, "calls = 3"),
        ({"calls": {"x": 1}}, "call 'x'"),
        ({"calls": {7: 1}}, "not one of its answered calls: 0, 1"),
        ({"calls": {-1: 1}}, "call -1"),
        ({"calls": {"0": "much"}}, "'much' for call 0"),
        ({"calls": {0: float("inf")}}, "finite number"),
        ({"reward": 10**400}, "finite number"),
        ({"reward": 10**5000}, "finite number"),
        ([1], "finite number"),
        (Outcome("much"), "finite number"),  # type: ignore[arg-type]
        (Outcome(float("nan")), "finite number"),
        (SystemExit("no luck"), "no luck"),
    ],
)
def test_a_result_that_cannot_be_read_ends_the_attempt_and_not_the_run(result: Any, why: str) -> None:
    def solve(task: dict[str, Any], client: Any) -> Any:
        reward = program_cases.two_turns(task, client)
        if client.seed and isinstance(result, BaseException):
            raise result
        return reward if client.seed == 0 else result

    found = collector(solve).run([Start(start.task, 0, start.number, start.number, 5) for start in starts(2)])
    assert [trajectory.stop for trajectory in found] == [Stop.DONE, Stop.ENVIRONMENT_FAULT]
    assert why in found[1].stop_detail


def test_measures_that_no_float_can_hold_are_left_out() -> None:
    found = read_worth({"reward": 1, "calls": {"0": True}, "huge": 10**400, "fine": np.float32(2)}, "t", [0])
    assert (found.reward, found.per_call, found.measures) == (1.0, {0: 1.0}, {"fine": 2.0})
    assert read_worth(Outcome(1.0, measures={"calls": 3.0}), "t").measures == {"calls": 3.0}


def test_a_command_is_ended_at_its_time_limit() -> None:
    (trajectory,) = played(command=["sleep", "60"], time_limit=0.2)
    assert trajectory.stop is Stop.ENVIRONMENT_TIMEOUT and not trajectory.turns


def test_a_server_is_sent_tasks_and_answers_with_the_outcome() -> None:
    def behave(handler: Any, body: dict[str, Any], before: int) -> None:
        client = program_cases.Client(body["base_url"], body["api_key"], body["seed"])
        reward = program_cases.two_turns(body["task"], client)
        handler.answer({"reward": reward, "success": True}, 200 if handler.path == "/v1/solve" else 404)

    with serving(behave) as server:
        (trajectory,) = played(url=f"{server.url}/solve")
        (lost,) = played(url=f"{server.url}/sove")
    assert (trajectory.reward, trajectory.success, len(trajectory.turns)) == (0.75, True, 2)
    assert lost.stop is Stop.ENVIRONMENT_FAULT and "HTTP 404" in lost.stop_detail


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of function"),
        ({"command": "python my_agent.py"}, "is a list of words"),
        ({"command": ["x"], "url": "http://127.0.0.1"}, "give one of function"),
        ({"command": ["x"], "result": "printd"}, "printed"),
        ({"command": ["x"], "anchor": "message"}, "messages"),
        ({"command": ["x"], "time_limit": 0}, "above 0"),
        ({"function": f"{PROGRAMS}:starts"}, "not a valid program"),
        ({"command": ["x"], "file": ["text"]}, "a task is an object"),
    ],
)
def test_mistakes_in_the_options_are_errors_that_help(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        ProgramEnv(**options)


def test_plans_that_need_more_than_a_program_gives_are_rejected() -> None:
    work = collector(program_cases.two_turns)
    (trajectory,) = work.run(starts(1))
    for changes, message in (
        ({"hint": "x"}, "hints"),
        ({"temperature": 0.5}, "temperature"),
        ({"branch": Branch(trajectory, 1)}, "branches"),
    ):
        with pytest.raises(TurnwiseError, match=message):
            work.run(starts(1, **changes))


def test_tasks_come_from_a_file_or_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"question": number, "split": "test" if number == 3 else "train"}) for number in range(5)))
    env = ProgramEnv(command=["x"], file=str(path))
    assert [task.id for task in env.tasks("train")] == ["1", "2", "3", "5"] and env.tasks("test")[0].data == {"question": 3}
    assert len(ProgramEnv(command=["x"]).tasks("valid", 3)) == 3
    assert {content_place({"id": "1", "question": number}) for number in range(60)} == set(range(10))
    with pytest.raises(TurnwiseError, match="plays by itself"):
        env.step("look")


def test_only_the_tasks_of_a_program_are_checked() -> None:
    report = check("program", function=program_cases.silent, file=[{"prompt": str(number)} for number in range(40)])
    assert report.ok and "plays by itself" in report.notes[0]


def test_words_of_a_command_are_filled_and_its_last_line_is_read() -> None:
    task = {"id": "7", "prompt": "a {b}", "n": 2}
    assert filled("{id}: {prompt} {n} {other}", task) == "7: a {b} 2 {other}"
    assert json.loads(filled("{task}", task)) == task
    assert [read_result(line) for line in ("0.5", "true", '{"reward": 1}', "done", "", "{}")] == [
        0.5,
        True,
        {"reward": 1},
        None,
        None,
        None,
    ]
    assert text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]) == "a\n[image_url]"


def test_a_program_is_trained_evaluated_and_resumed(tmp_path: Path) -> None:
    rows = [{"prompt": f"go {word}", "split": split} for word, split in (("north", "train"), ("south", "train"), ("up", "valid"))]
    changes: dict[str, Any] = {
        "env": {"name": "program", "options": {"function": f"{PROGRAMS}:family", "file": rows}},
        "model.tiny": {"layers": 1, "hidden": 32, "heads": 2},
        "engine": {"name": "native", "max_tokens": 4},
        "collect": {"groups": 2, "group_size": 2},
        "sft": None,
        "eval": {"n": 1},
    }
    result = tw.train(iterations=1, out=str(tmp_path), quiet=True, **changes)
    run = Run.open(result.folder)
    found = stored_trajectories(run, 1, tokens=True)
    assert [len(trajectory.turns) for trajectory in found] == [2, 2, 1, 1, 1] * 4
    row = run.metrics()[-1]
    assert row["collect/attempts"] == 4 and row["collect/lines"] == 20 and row["eval/success"] == 1.0
    assert run.evaluation(1)["attempts"] == 1, "an evaluation counts attempts, not lines"
    again = tw.train(resume=run.folder, iterations=2, quiet=True)
    assert len(Run.open(again.folder).metrics()) == 3
