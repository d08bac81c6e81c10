"""Keys reach the server that was named and nobody else; they are never written down; no answer takes longer than its time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai_server import serving

from turnwise.engines.base import Request, Sampling
from turnwise.engines.openai import OpenAIEngine
from turnwise.engines.openai import Server as OpenAIServer
from turnwise.pages.settings import recipe_of
from turnwise.recipe.schema import Config
from turnwise.retrieval import make_retriever
from turnwise.retrieval.remote import Remote
from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact, redacted, secrets_in
from turnwise.util.transport import Failure, Transport
from turnwise_envs.openenv.wire import Lost, Session, action_schema

KEY = "sk-very-secret-1234567890"


def address(server: Any) -> str:
    return str(server.url).removesuffix("/v1")


@pytest.fixture
def thief() -> Iterator[Any]:
    answer = {"action": {}, "result": [[]], "choices": [{"message": {"content": "x"}}], "observation": {}}
    with serving(lambda handler, body, before: handler.answer(answer)) as server:
        yield server


@pytest.fixture(params=[301, 302, 303, 307, 308])
def redirecting(request: pytest.FixtureRequest, thief: Any) -> Iterator[Any]:
    with serving(lambda handler, body, before: handler.answer(b"", request.param, Location=f"{address(thief)}/stolen")) as server:
        yield server


def test_no_redirect_is_followed_and_no_key_goes_elsewhere(redirecting: Any, thief: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    with pytest.raises(Lost, match="not followed"):
        action_schema(address(redirecting), 20.0, KEY)
    with pytest.raises(TurnwiseError, match="not followed"):
        Remote(address(redirecting), 20.0, retries=0, key_variable="THE_KEY").search(["a"], 1)
    engine = OpenAIEngine(OpenAIServer(redirecting.url, "m", key_variable="THE_KEY", retries=0, timeout=20.0))
    engine.submit([Request(0, (1,), Sampling(), messages=({"role": "user", "content": "x"},))])
    assert "not followed" in engine.poll()[0].message
    engine.close()


def test_a_session_follows_no_redirect(redirecting: Any, thief: Any) -> None:
    pytest.importorskip("websockets")
    with pytest.raises(Lost, match="no connection"):
        Session(address(redirecting), 20.0, KEY)
    assert redirecting.seen and thief.seen == []


@pytest.fixture
def dripping() -> Iterator[str]:
    """A server that answers a byte at a time and never comes to an end."""
    stop = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def drip(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX: ")
                while not stop.wait(0.02):
                    connection.sendall(b"a")
            except OSError:
                return

    def accept() -> None:
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    stop.set()
    listening.close()


def test_an_answer_that_drips_ends_with_its_time(dripping: str) -> None:
    with pytest.raises(Lost, match="no answer within"):
        action_schema(dripping, 0.3, KEY)
    with pytest.raises(TurnwiseError, match="no answer within"):
        Remote(dripping, 0.3, retries=0).search(["a"], 1)
    pytest.importorskip("websockets")
    with pytest.raises(Lost, match="no connection"):
        Session(dripping, 0.3, KEY)


def test_a_session_whose_server_reads_nothing_ends_with_its_time() -> None:
    sync = pytest.importorskip("websockets.sync.server")
    stop = threading.Event()

    def deaf(connection: Any) -> None:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stop.wait(60)

    with sync.serve(deaf, "127.0.0.1", 0, max_queue=1, max_size=None, close_timeout=0.1) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = Session(f"http://127.0.0.1:{server.socket.getsockname()[1]}", 0.5, "")
        with pytest.raises(Lost):
            for _ in range(8):
                session.step({"message": "a" * 2**22})
        stop.set()
        session.close()
        server.shutdown()


@pytest.mark.parametrize(
    "changes",
    [
        {"engine.name": "openai", "engine.model": "m", "engine.url": f"http://me:{KEY}@127.0.0.1:8000/v1"},
        {"env.options": {"url": f"https://me:{KEY}@host/"}},
        {"env.options": {"retriever": {"name": "http", "url": f"http://me:{KEY}@host"}}},
        {"run.trackers": ["wandb"], "run.tracker_options": {"wandb": {"api_key": KEY}}},
        {"engine.options": {"extra": {"headers": {"Authorization": f"Bearer {KEY}"}}}},
    ],
)
def test_a_recipe_with_a_secret_is_refused_and_the_words_do_not_repeat_it(changes: dict[str, Any]) -> None:
    with pytest.raises(TurnwiseError, match="environment variable") as error:
        Config.load(None, {"agent.max_prompt_tokens": 400, **changes})
    assert KEY not in str(error.value)


def test_other_mistakes_beside_a_secret_do_not_repeat_it_either() -> None:
    with pytest.raises(TurnwiseError) as error:
        Config.load(None, {"engine.url": [f"http://me:{KEY}@host"], "seed": -1})
    assert KEY not in str(error.value)


def test_the_retrievers_key_comes_from_a_variable(thief: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match="key_variable") as error:
        make_retriever({"name": "http", "url": address(thief), "key": KEY})
    assert KEY not in str(error.value)
    monkeypatch.delenv("THE_KEY", raising=False)
    with pytest.raises(TurnwiseError, match="THE_KEY, which is not set"):
        make_retriever({"name": "http", "url": address(thief), "key_variable": "THE_KEY"})
    monkeypatch.setenv("THE_KEY", KEY)
    assert make_retriever({"name": "http", "url": address(thief), "key_variable": "THE_KEY"}).search(["a"], 1) == [[]]
    assert [(path, headers["Authorization"]) for path, _, headers in thief.seen] == [("/retrieve", f"Bearer {KEY}")]


def test_errors_name_a_server_without_its_password() -> None:
    for wrong in (f"http://me:{KEY}@127.0.0.1:1", f"ftp://me:{KEY}@host", f"http://me:{KEY}@host:99999"):
        with pytest.raises(TurnwiseError) as error:
            Transport(wrong, "", 1.0)
        assert KEY not in str(error.value) and "***@" in str(error.value)
    with pytest.raises(TurnwiseError, match="line break"):
        Transport("http://127.0.0.1:1", "a\r\nX: b", 1.0)


def test_a_server_that_repeats_the_key_is_not_quoted_with_it() -> None:
    repeated = {"error": f"no such key {KEY} for https://me:{KEY}@host"}
    with serving(lambda handler, body, before: handler.answer(repeated, 401)) as server, pytest.raises(Failure) as error:
        Transport(server.url, KEY, 20.0).get("x")
    assert KEY not in str(error.value) and "no such key" in str(error.value)


def test_what_is_shown_of_an_old_recipe_hides_its_secrets(tmp_path: Path) -> None:
    text = f'[env.options.retriever]\nname = "http"\nurl = "http://me:{KEY}@host/?token={KEY}"\nkey = "{KEY}"\nkey_variable = "MY_KEY"\n'
    (tmp_path / "config.toml").write_text(text)
    told = recipe_of(tmp_path)
    assert KEY not in str(told) and "MY_KEY" in told["text"] and ["env.options.retriever.key", "***", None] in told["differs"]


def test_what_counts_as_a_secret() -> None:
    good = {"secret": "the word to guess", "key": "colour", "url": "http://host:80/a@b", "key_variable": "OPENAI_API_KEY", "token": "x"}
    assert list(secrets_in(good)) == [] and redact("mail me@host, see http://host/a@b") == "mail me@host, see http://host/a@b"
    bad = {"password": "x", "my_api_key": "x", "auth_token": "x", "a": {"b": ["ws://u@h"]}}
    assert list(secrets_in(bad)) == ["password", "my_api_key", "auth_token", "a.b"]
    assert redacted({"a": [{"password": KEY}], "n": 3, "u": f"x://{KEY}@h"}) == {"a": [{"password": "***"}], "n": 3, "u": "x://***@h"}
    assert redact(f"Authorization: Bearer {KEY}") == "Authorization: Bearer ***"
    assert len(redact("://" + "a" * 10**5 + " ?" + "key" * 10**4 + "=" * 10**4)) > 10**5  # hostile texts end soon too
