"""Evaluating a model on a server: same tasks, prompts and collector, no weights here, and the key stays secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli
from openai_server import Handler, serving
from train_cases import Heard, start

import turnwise as tw
from turnwise import TurnwiseError

COUNTER = f"{ROOT / 'tests' / 'support' / 'counter_env.py'}:Counter"
SECRET = "sk-very-secret"


def adds(handler: Handler, body: dict[str, Any], before: int) -> None:
    handler.complete("<think>one more</think><action>add one</action>")


def served(url: str, **changes: Any) -> dict[str, Any]:
    quick = {"engine.options": {"first_wait": 0.001, "retries": 1}}
    return {"engine.name": "openai", "engine.url": url, "engine.model": "a-model", **quick, **changes}


def test_a_served_model_is_measured_on_a_panel_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Cli) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with serving(adds) as server:
        asked = ["--engine", "openai", "--url", server.url, "--model", "a-model", "--env", COUNTER, "--n", "3", "--json"]
        done = here("eval", *asked)
        seen = server.seen
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["successes"] == result["attempts"] == 3 and result["turns"] == 3.0
    path, body, headers = seen[0]
    assert path == "/v1/chat/completions" and body["model"] == "a-model" and headers["Authorization"] == f"Bearer {SECRET}"
    assert "The counter shows 0." in body["messages"][-1]["content"] and body["temperature"] == 0.4
    assert SECRET not in done.stdout + done.stderr and not list(tmp_path.iterdir())


def test_a_recipe_and_a_run_can_be_played_by_a_server(tmp_path: Path) -> None:
    with serving(lambda handler, body, before: handler.complete("left")) as server:
        run = start(tmp_path, iterations=0).folder
        assert tw.evaluate(run, n=2, **served(server.url)).success.rate == 1.0
        recipe = tmp_path / "served.toml"
        recipe.write_text(
            f'[env]\nname = "{COUNTER}"\n[agent]\nprompt = "action"\n[engine]\nname = "openai"\nurl = "{server.url}"\nmodel = "a-model"\n'
        )
        found = tw.evaluate(recipe, n=2)
    assert found.stops == {"step limit": 2}


def test_a_tool_call_that_the_server_took_apart_is_read(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"amount": 3}'}}

    def calls(handler: Handler, body: dict[str, Any], before: int) -> None:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        handler.answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    with serving(calls) as server:
        found = tw.evaluate(env=COUNTER, n=2, **served(server.url, **{"agent.prompt": "tool"}))
    assert found.success.rate == 1.0 and found.turns == 1.0 and found.invalid == 0.0


def test_tools_are_sent_to_the_server_where_its_chat_template_tells_of_them(tmp_path: Path) -> None:
    run = start(tmp_path, iterations=0).folder
    template = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
    changes = {"agent.prompt": "tool", "agent.template_options": {"chat_template": template}}
    with serving(adds) as server:
        tw.evaluate(run / "model", env=COUNTER, n=1, **served(server.url, **changes))
        body = server.seen[0][1]
    assert body["tools"][0]["function"]["name"] == "add" and "JSON schemas" not in body["messages"][-1]["content"]


def test_a_server_that_answers_nothing_is_an_error_and_one_that_fails_at_times_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with (
        serving(lambda handler, body, before: handler.answer({"error": f"bad key {SECRET}"}, 401)) as server,
        pytest.raises(TurnwiseError, match=r"2 of 2 attempts.*401.*\*\*\*") as caught,
    ):
        tw.evaluate(env=COUNTER, n=2, **served(server.url))
    assert SECRET not in str(caught.value)
    heard = Heard()
    failed: list[int] = []

    def tired(handler: Handler, body: dict[str, Any], before: int) -> None:
        if "shows 1" in str(body["messages"]) and not failed:
            failed.append(before)
            handler.answer({"error": "tired"}, 400)
        else:
            adds(handler, body, before)

    with serving(tired) as server:
        found = tw.evaluate(env=COUNTER, n=4, reporter=heard, **served(server.url))
    assert found.success.count == 3 and any("1 of 4 attempts" in note and "tired" in note for note in heard.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine.name": "openai"}, "needs engine.url"),
        ({"engine.url": "http://127.0.0.1:9/v1", "agent.max_prompt_tokens": 500}, "go with engine.name=openai"),
        (served("http://127.0.0.1:9/v1", **{"engine.options": {"patience": 3}}), "patience.*concurrency"),
        (served("127.0.0.1:9"), "an address looks like"),
        (served("http://127.0.0.1:9/v1", **{"engine.options": {"key_variable": "NO_SUCH_KEY"}}), "NO_SUCH_KEY"),
    ],
)
def test_wrong_settings_of_a_server_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        tw.evaluate(ROOT / "recipes" / "own-env.toml" if "engine.name" not in changes else None, env=COUNTER, n=1, **changes)
