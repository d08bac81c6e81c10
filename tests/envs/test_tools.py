"""Tasks with tools: functions and MCP servers, calls that cannot be read, tools that hang, die or say too much."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import ROOT

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.config.loading import load_file
from turnwise.config.references import code_in
from turnwise.envs.guard import descendants
from turnwise.envs.tools.calls import Call, Final, Mistake, read_call
from turnwise.envs.tools.env import ToolsEnv
from turnwise.envs.tools.schemas import describe, fitted
from turnwise.envs.tools.servers import servers
from turnwise.envs.tools.settings import read_servers

SHOP = load_file(ROOT / "examples" / "agents" / "shop.py")
ROWS = list(SHOP.tasks())
ROUGH: dict[str, Any] = {"command": [sys.executable, "-I", "-S", str(ROOT / "tests" / "standins" / "rough_server.py")]}
REAL: dict[str, Any] = {"command": [sys.executable, str(ROOT / "examples" / "agents" / "shop_server.py")]}


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def made(**options: Any) -> ToolsEnv:
    return ToolsEnv(**{"file": ROWS, "functions": [SHOP.price, SHOP.stock], "reward": SHOP.right, **options})


def begun(**options: Any) -> ToolsEnv:
    env = made(**options)
    env.reset(env.tasks("train")[0])
    return env


def said(env: ToolsEnv, name: str, **arguments: Any) -> str:
    return env.step(call(name, **arguments)).observation.text


@pytest.fixture
def rough() -> Iterator[ToolsEnv]:
    """An environment whose only tools are those of a server that breaks the rules."""
    env = begun(functions=(), servers=ROUGH, tool_timeout=20.0, max_turns=50, longest_result=200)
    yield env
    env.close()
    servers.close()


def test_a_task_is_solved_with_a_tool_and_scored_by_the_reward_function() -> None:
    env = made()
    task = env.tasks("train")[0]
    first = env.reset(task).text
    assert task.data["prompt"] in first and '"name": "price"' in first and '"name": "answer"' in first
    assert said(env, "price", item="bread") == "4"
    end = env.step(call("answer", answer="4"))
    assert (end.reward, end.done, end.success) == (1.0, True, True)
    with pytest.raises(tw.envs.EpisodeOver):
        env.step(call("price", item="bread"))


def test_schemas_come_from_type_hints_and_docstrings() -> None:
    def book(city: str, nights: int = 1, kind: Literal["single", "double"] = "single", extras: list[str] | None = None, state: Any = None):
        """Book a room.

        Args:
            city: where it is
            nights (int): how long
        """

    tool = describe(book)
    assert tool.description == "Book a room." and tool.parameters["required"] == ["city"]
    assert tool.parameters["properties"] == {
        "city": {"type": "string", "description": "where it is"},
        "nights": {"type": "integer", "description": "how long", "default": 1},
        "kind": {"type": "string", "enum": ["single", "double"], "default": "single"},
        "extras": {"type": "array", "items": {"type": "string"}},
    }
    assert fitted(tool, {"city": "Rome", "nights": 2}) == ""
    assert "needs the argument 'city'" in fitted(tool, {})
    assert "'nights' of book must be of type integer" in fitted(tool, {"city": "Rome", "nights": "two"})
    assert "must be of type integer" in fitted(tool, {"city": "Rome", "nights": True})
    assert '"single", "double"' in fitted(tool, {"city": "Rome", "kind": "triple"})
    assert "city" in fitted(tool, {"city": "Rome", "cty": "x"})

    def read(where: Path) -> str:
        return ""

    with pytest.raises(TurnwiseError, match="parameter 'where'"):  # JSON cannot hold it
        describe(read)


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        ('{"name": "price", "arguments": {"item": "pear"}}', Call("price", {"item": "pear"})),
        ('<tool_call>{"name": "price", "arguments": "{\\"item\\": \\"pear\\"}"}</tool_call>', Call("price", {"item": "pear"})),
        ("<think>{hm}</think>answer[5]", Final("5")),
        ("<answer> 5 </answer>", Final("5")),
        ('{"name": "answer", "arguments": {"answer": 5}}', Final("5")),
    ],
)
def test_calls_and_answers_are_read_in_every_form(action: str, wanted: object) -> None:
    assert read_call(action) == wanted


@pytest.mark.parametrize(
    "action", ["", "\ud800", "look", "{", '{"name": 3}', '{"name": "a", "arguments": []}', "<tool_call>{}", "[" * 9999]
)
def test_a_malformed_call_is_answered_with_what_to_write(action: str) -> None:
    found = read_call(action)
    assert isinstance(found, Mistake) and "Call a tool as" in found.text
    assert begun().step(action).observation.text == found.text


def test_a_text_is_the_answer_only_where_that_is_wanted() -> None:
    assert read_call("it is 5", plain_answers=True) == Final("it is 5")
    assert isinstance(read_call('{"name": "price"', plain_answers=True), Mistake)


def test_a_tool_that_fails_or_hangs_is_an_observation() -> None:
    def broken(state: dict) -> str:
        """Fails."""
        raise ValueError(f"after {len(state['calls'])} calls")

    def slow() -> str:
        """Hangs."""
        time.sleep(30)
        return ""

    async def later(item: str) -> dict:
        """Takes a while."""
        return {"item": item}

    hurried = begun(functions=[slow], tool_timeout=0.2)
    assert said(hurried, "slow") == "Error: slow did not return within 0.2 s and was given up."
    env = begun(functions=[broken, slow, later])
    assert said(env, "broken") == "Error: ValueError: after 0 calls"
    assert said(env, "later", item="x") == '{"item": "x"}'
    assert "unknown tool 'brokn'" in said(env, "brokn")
    assert said(env, "later").startswith("Error: later needs the argument 'item'")


def test_the_reward_function_sees_what_was_done_and_attempts_do_not_share_it() -> None:
    def scored(task: dict[str, Any], answer: str, state: dict[str, Any]) -> dict[str, Any]:
        return {"reward": len(state["calls"]) / 10, "success": True, "calls": len(state["calls"])}

    env = begun(reward=scored, max_turns=3)
    said(env, "price", item="milk")
    end = env.step("answer[2]")
    assert (end.reward, end.success, end.info) == (0.1, True, {"measures": {"calls": 1.0}})
    env.reset(env.tasks("train")[0])
    assert env.step("answer[2]").reward == 0.0


def test_without_an_answer_the_attempt_ends_at_the_limit() -> None:
    env = begun(max_turns=2)
    assert not env.step("look").done
    end = env.step("look")
    assert (end.done, end.success, end.reward) == (True, False, 0.0)


def test_anchors_are_the_text_or_everything_that_was_done() -> None:
    task = made().tasks("train")[0]
    for anchor, same in (("observation", True), ("calls", False)):
        env = made(anchor=anchor)
        env.reset(task)
        keys = [env.step(call("price", item=item)).observation.key for item in ("milk", "milk")]
        assert (keys[0] == keys[1]) is same


def test_a_check_command_scores_answers_and_sees_no_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "1")
    monkeypatch.setenv("MY_OTHER", "1")
    code = (
        "import json, os, sys; answer = json.loads(os.environ['TURNWISE_TASK'])['data']['answer']\n"
        "print('MY_SECRET' not in os.environ and 'MY_OTHER' in os.environ and sys.stdin.read() == answer and 0.5)"
    )
    words = [sys.executable, "-I", "-S", "-c", code]
    env = begun(reward=None, check=words, variables=["MY_OTHER"], success_at=0.5)
    answer = env.tasks("train")[0].data["data"]["answer"]
    end = env.step(f"answer[{answer}]")
    assert (end.reward, end.success) == (0.5, True)
    failing = begun(reward=None, check=[sys.executable, "-I", "-S", "-c", "raise SystemExit(1)"])
    assert failing.step("answer[4]").reward == 0.0


def test_splits_are_those_of_the_rows_or_of_the_prompts() -> None:
    env = made()
    assert {task.id for task in env.tasks("valid")} == {row["id"] for row in ROWS if row["split"] == "valid"}
    unsplit = made(file=[{"prompt": f"Task {number}"} for number in range(40)])
    assert len(unsplit.tasks("train")) > len(unsplit.tasks("test")) > 0
    with pytest.raises(TurnwiseError, match="split of environment 'tools'"):
        env.tasks("tran")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": None}, "give one of them"),
        ({"functions": ()}, "there are no tools"),
        ({"anchor": "calsl"}, "calls"),
        ({"servers": {"command": "python server.py"}}, "is a list"),
        ({"servers": {"comand": ["x"]}}, "command"),
        ({"servers": "ftp://here"}, "starts with http"),
        ({"servers": {"command": ["x"], "reuse": "alway"}}, "always"),
        ({"reward": lambda answer: 1}, "takes \\(task, answer\\)"),
    ],
)
def test_mistakes_in_the_options_are_errors_that_help(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        made(**options)


def test_commands_in_a_recipe_count_as_code_that_it_names() -> None:
    values = {"env": {"options": {"servers": [{"command": ["npx", "shop"]}], "check": ["grade"]}}}
    assert code_in(values) == ["grade", "npx", "shop"]


def test_a_server_that_dies_is_started_again(rough: ToolsEnv) -> None:
    assert [said(rough, "count"), said(rough, "count")] == ["1", "2"]
    assert "die failed: its server has ended. The server is started again" in said(rough, "die")
    assert said(rough, "count") == "1"
    assert said(rough, "fail") == "Error: no such row" and said(rough, "picture") == "[image]"


def test_fifty_megabytes_are_cut_with_a_note(rough: ToolsEnv) -> None:
    text = said(rough, "flood", characters=50_000_000)
    assert len(text) < 400 and text.endswith("[cut: the result has 50,000,000 characters, and the first 200 are shown]")


def test_a_message_beyond_all_limits_ends_the_server(rough: ToolsEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.envs.tools.transport.LONGEST_MESSAGE", 100_000)
    assert "its server sent more than" in said(rough, "flood", characters=1_000_000)
    assert said(rough, "count") == "1"


def test_a_server_that_hangs_is_given_up_within_the_limit_and_leaves_no_process() -> None:
    env = begun(functions=(), servers=ROUGH, tool_timeout=1.0)
    connection = env._connections[env._settings[0]]
    pid = connection._pipe.process.pid  # type: ignore[union-attr]
    assert pid in descendants(os.getpid())
    assert "hang failed: it did not return within 1 s" in said(env, "hang")
    connection.wait(5.0)
    assert pid not in descendants(os.getpid())
    assert said(env, "count") == "1"
    env.close()


def test_servers_see_only_the_variables_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "1")
    monkeypatch.setenv("MY_TOKEN", "1")
    env = begun(functions=(), servers={**ROUGH, "variables": ["MY_TOKEN"], "set": {"MODE": "test"}})
    seen = said(env, "variables").split()
    env.close()
    assert "MY_TOKEN" in seen and "MODE" in seen and "MY_SECRET" not in seen and "PATH" in seen


@pytest.mark.parametrize(("settings", "counted"), [({}, ["1", "1"]), ({"reuse": "always"}, ["1", "2"]), ({"reads": True}, ["1", "2"])])
def test_a_server_is_shared_by_attempts_only_if_it_keeps_nothing(settings: dict[str, Any], counted: list[str]) -> None:
    more = ["--reads"] if settings.pop("reads", False) else []
    env = made(functions=(), servers={"command": [*ROUGH["command"], *more], **settings})
    found = []
    for _ in range(2):
        env.reset(env.tasks("train")[0])
        found.append(said(env, "count"))
    env.close()
    servers.close()
    assert found == counted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["/nowhere/server"]}, "cannot be used: FileNotFoundError"),
        ({"command": [sys.executable, "-I", "-S", "-c", "pass"]}, "cannot be used"),
        ({**ROUGH, "tools": ["cont"]}, "it has no tool 'cont'"),
    ],
)
def test_a_server_that_cannot_be_started_is_an_error_that_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        begun(functions=(), servers=settings)


def test_a_header_takes_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    (settings,) = read_servers([{"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "MY_KEY"}}])
    with pytest.raises(TurnwiseError, match="MY_KEY is not set"):
        settings.http_headers()
    monkeypatch.setenv("MY_KEY", "Bearer x")
    assert settings.http_headers() == {"Authorization": "Bearer x"}


def test_a_server_is_used_over_http_and_its_end_is_survived() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*REAL["command"], str(port)], **quiet)  # type: ignore[call-overload]
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        env = begun(functions=(), servers=f"http://127.0.0.1:{port}/mcp")
        assert said(env, "price", item="pear") == "5"
        process.kill()
        process.wait()
        assert "its server has ended. The server is connected again" in said(env, "price", item="pear")
        with pytest.raises(TurnwiseError, match="cannot be used"):
            said(env, "price", item="pear")
    finally:
        process.kill()
        process.wait()
        servers.close()


def test_every_example_of_a_tool_call_wins_over_the_real_server() -> None:
    env = made(functions=(), servers=REAL)
    tasks = [*env.tasks("train"), *env.tasks("valid")]
    assert [tool.name for tool in env.tools_now()] == ["items", "price", "stock", "answer"]
    for task in tasks:
        env.reset(task)
        assert [env.step(action) for action in env.expert(task)][-1].success
    assert servers.shared, "its tools only read, so one server serves all attempts"
    env.close()
    servers.close()
