"""`turnwise serve`: a trained model behind the endpoint, as the page describes it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli
from endpoint_cases import post, tiny, user

from turnwise.engines.serve import Endpoint, Opened
from turnwise.setup import serving
from turnwise.util.errors import TurnwiseError

PAGE = (ROOT / "docs" / "guides" / "serving.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    found: Path = tmp_path_factory.mktemp("models") / "small"
    model, tokenizer = tiny()
    model.save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Endpoint], None]], None]:
    """Does something while the command serves, and then presses Ctrl-C."""

    def set_to(work: Callable[[Endpoint], None]) -> None:
        def waited(endpoint: Endpoint) -> None:
            work(endpoint)
            raise KeyboardInterrupt

        monkeypatch.setattr(serving, "wait", waited)

    return set_to


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_the_pages_examples_work_and_ctrl_c_ends(folder: Path, here: Cli, during: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, str] = {}

    def use(endpoint: Endpoint) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "open-sesame")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block("python"), "serving.md", "exec"), {})
        said["python"] = printed.getvalue()
        if shutil.which("curl"):
            asked = subprocess.run(["bash", "-c", block("bash")], capture_output=True, text=True, timeout=60, env=os.environ)
            said["curl"] = json.loads(asked.stdout)["choices"][0]["message"]["content"]

    during(use)
    told = here("serve", str(folder), "--port", "0", "--key", "open-sesame", "--device", "cpu")
    assert told.returncode == 0, told.stderr
    assert said["python"].strip()
    assert "curl" not in said or said["curl"]
    assert re.search(r"small at http://127\.0\.0\.1:\d+/v1 +\(Ctrl-C ends\)", told.stdout)
    assert re.search(r"export OPENAI_BASE_URL=http://127\.0\.0\.1:\d+/v1 OPENAI_API_KEY=open-sesame", told.stdout)


def test_clients_choose_how_tokens_are_drawn_and_conversations_continue(folder: Path) -> None:
    endpoint, opened = serving.serve_model(folder, port=0, device="cpu", max_tokens=6, name="mine")
    with endpoint:

        def asked(*messages: Any, **more: Any) -> Any:
            status, body = post(opened, "/chat/completions", {"messages": list(messages), **more})
            assert status == 200, body
            return body

        same = [asked(user("hello"), seed=1, temperature=1.0)["choices"][0]["message"]["content"] for _ in range(2)]
        assert same[0] == same[1]
        greedy = [asked(user("hello"), temperature=0)["choices"][0]["message"] for _ in range(2)]
        assert greedy[0]["content"] == greedy[1]["content"]
        first = asked(user("hello"), temperature=0)
        later = asked(user("hello"), first["choices"][0]["message"], user("go"), max_tokens=100)
        assert first["usage"]["completion_tokens"] <= 6
        assert later["usage"]["completion_tokens"] <= 6, "the most tokens are the server's"
        held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        assert later["usage"]["prompt_tokens"] > held, "the sampled tokens are part of the next prompt"
        assert post(opened, "/reward", {"value": 1})[0] == 404
        assert not endpoint._service.alone.recorder.calls, "nothing is recorded"  # type: ignore[union-attr]
        assert post(Opened(opened.base_url, "wrong"), "/chat/completions", {"messages": [user("a")]})[0] == 401


def test_a_key_is_made_or_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(serving.KEY_VARIABLE, raising=False)
    assert len({serving._key(None) for _ in range(3)}) == 3
    monkeypatch.setenv(serving.KEY_VARIABLE, "from-here")
    assert (serving._key(None), serving._key("given")) == ("from-here", "given")
    for wrong in ("", "two words", "naïve"):
        with pytest.raises(TurnwiseError, match="key"):
            serving._key(wrong)


def test_mistakes_are_named(folder: Path, here: Cli, tmp_path: Path, during: Any) -> None:
    assert "neither a run" in here("serve", str(tmp_path)).stderr

    def twice(endpoint: Endpoint) -> None:
        with pytest.raises(TurnwiseError, match=f"port {endpoint.port}: Address already in use"):
            serving.serve_model(folder, port=endpoint.port, device="cpu")

    during(twice)
    assert here("serve", str(folder), "--port", "0", "--device", "cpu").returncode == 0


def test_a_run_is_served_with_its_recipes_settings(tmp_path: Path, folder: Path) -> None:
    from turnwise.recipe.schema import Config
    from turnwise.recipe.writing import to_toml
    from turnwise.runs.folder import Run

    text = to_toml(Config.load(None, {"engine.max_tokens": 5, "agent.max_prompt_tokens": 500, "eval.temperature": 0.25}))
    run = Run.create(tmp_path, "mine", text)
    shutil.copytree(folder, run.model)
    endpoint, opened = serving.serve_model(run.folder, port=0, device="cpu")
    with endpoint:
        sampling = endpoint._service.caller.sampling
        assert (sampling.max_tokens, sampling.temperature) == (5, 0.25)
        assert post(opened, "/responses", {"input": "hello"})[1]["usage"]["output_tokens"] <= 5


@pytest.mark.skipif(sys.platform == "win32", reason="addresses")
def test_other_addresses_are_pointed_out(folder: Path, capsys: pytest.CaptureFixture[str], during: Any) -> None:
    during(lambda endpoint: None)
    lines: list[str] = []
    endpoint, opened = serving.serve_model(folder, host="0.0.0.0", port=0, device="cpu")
    serving.run_server(endpoint, opened, "small", lines.append)
    assert "other machines can reach it" in lines[-1]
