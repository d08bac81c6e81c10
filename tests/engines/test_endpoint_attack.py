"""Nobody reads or writes what is not theirs, and nobody stops the others: keys, malformed requests, slow connections, faults."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from endpoint_attacks import attack, head
from endpoint_cases import WEATHER, Scripted, ask, endpoint, post, qwen_chat, said, scripted, user

from turnwise.agent.dialogue import Dialogue
from turnwise.engines.base import Response, Sampling
from turnwise.engines.serve import Endpoint, Limits, Opened, app, calling
from turnwise.engines.serve import endpoint as serving
from turnwise.engines.serve.schema import TooCostly, mismatch
from turnwise.util.errors import TurnwiseError


@pytest.fixture(scope="module")
def served() -> Iterator[Endpoint]:
    with endpoint(limits=Limits(at_once=1000, header_seconds=0.2, read_seconds=0.3, body_bytes=200_000)) as made:
        yield made


def raw(opened: Opened, sent: bytes) -> socket.socket:
    address = urlsplit(opened.base_url)
    made = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
    made.sendall(sent)
    return made


def test_malformed_requests_and_silent_connections_disturb_nobody(served: Endpoint) -> None:
    statuses = attack(served, requests=160, connections=40, turns=3)
    assert {200, 400, 401, 404} <= set(statuses)
    assert max(statuses) < 500
    for name in ("attacker", "reader", "alone"):
        served.close(name)


def test_a_key_opens_its_own_attempt_only(served: Endpoint) -> None:
    mine, other = served.open("mine"), served.open("other")
    crossed = [Opened(mine.base_url, other.key), Opened(mine.base_url, ""), Opened(f"{served.url}/a/guess/v1", mine.key)]
    crossed += [Opened(f"{served.url}/v1", mine.key), Opened(mine.base_url, mine.key[:-1])]
    answers = {json.dumps(post(one, path, {"messages": [user("a")], "value": 1, "key": "k"}))
               for one in crossed for path in ("/chat/completions", "/responses", "/reward", "/anchor")}  # fmt: skip
    assert len(answers) == 1, "who has no key learns nothing, not even whether there is such an attempt"
    assert json.loads(answers.pop())[0] == 401
    recorders = served.close("mine"), served.close("other")
    assert all(not one.calls and not one.reward and one.next_anchor is None for one in recorders)
    assert post(mine, "/chat/completions", {"messages": [user("a")]})[0] == 401, "a closed attempt is over"


def test_what_arrives_too_slowly_or_too_large_is_given_up(served: Endpoint) -> None:
    opened = served.open("slow")
    silent, half = raw(opened, b""), raw(opened, b"POST / HTTP/1.1\r\nHost:")
    waiting = raw(opened, head(opened, 100) + b'{"mess')
    assert waiting.recv(4096).startswith(b"HTTP/1.1 408")
    assert silent.recv(100) == b""
    assert half.recv(100) == b""
    large = raw(opened, head(opened, 1 << 40))
    assert large.recv(4096).startswith(b"HTTP/1.1 413")
    for one in (silent, half, waiting, large):
        one.close()
    assert not served.close("slow").calls


def test_a_reader_that_stops_reading_is_given_up() -> None:
    text = "word " * 400
    made, _ = scripted(text, "Fine.", limits=Limits(write_seconds=0.2))
    made._service.caller.sampling = Sampling(max_tokens=1 << 20)
    with made:
        made._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)  # what the kernel keeps for a connection
        opened = made.open("a")
        address = urlsplit(opened.base_url)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stuck.connect((address.hostname or "", address.port or 0))
        body = json.dumps({"messages": [user("a")], "stream": True}).encode()
        stuck.sendall(head(opened, len(body)) + body)
        until = time.monotonic() + 20
        while not made.recorder("a").finished() and not any(call.done for call in made.recorder("a").calls):
            assert time.monotonic() < until
            time.sleep(0.01)
        while made._server is not None and made._server.server_state.connections:
            assert time.monotonic() < until, "the connection is closed from our side"
            time.sleep(0.01)
        assert ask(opened, [user("b")])["choices"][0]["message"]["content"] == "Fine."
        stuck.close()


def test_too_many_calls_at_once_are_told_so() -> None:
    with endpoint(limits=Limits(at_once=2)) as made:
        opened = made.open("a")
        assert post(opened, "/chat/completions", {"messages": [user("a")], "n": 3})[0] == 429
        assert post(opened, "/chat/completions", {"messages": [user("a")], "n": 17})[0] == 400
        assert made.recorder("a").running == 0


def test_a_client_that_goes_ends_its_call_undelivered() -> None:
    with endpoint(Sampling(max_tokens=1500)) as made:
        opened = made.open("a")
        body = json.dumps({"messages": [user("hello")]}).encode()
        gone = raw(opened, head(opened, len(body)) + body)
        until = time.monotonic() + 20
        while not made.recorder("a").calls:
            assert time.monotonic() < until
            time.sleep(0.005)
        gone.close()
        while made.recorder("a").running:
            assert time.monotonic() < until
            time.sleep(0.005)
        (call,) = made.close("a").calls
        if not call.delivered:  # unless it was ready before
            assert len(call.response_ids) < 1500
            assert call.stop_reason in ("rule", "stop")


class Failing(Scripted):
    """An engine that fails as a whole."""

    def poll(self, wait: bool = True) -> list[Response]:
        raise ValueError("the cat sat on the GPU")


def test_an_engine_that_fails_is_told_to_both_sides() -> None:
    chat = qwen_chat()
    with Endpoint(Failing(chat, "a", "b"), chat, Sampling()) as made:
        opened = made.open("a")
        for _ in range(2):
            status, body = post(opened, "/chat/completions", {"messages": [user("a")]})
            assert status == 503
            assert "error" in body
        with pytest.raises(TurnwiseError, match="the cat sat"):
            made.check()
        assert made.recorder("a").running == 0


def test_prompts_that_do_not_fit_and_messages_that_no_template_takes_are_the_clients_fault(served: Endpoint) -> None:
    opened = served.open("long")
    status, body = post(opened, "/chat/completions", {"messages": [user("hello " * 3000)]})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert post(opened, "/chat/completions", {"messages": [{"role": "alien", "content": ""}]})[0] == 400
    image: Any = [{"type": "image_url", "image_url": {"url": "data:"}}]
    assert post(opened, "/chat/completions", {"messages": [user(image)]})[1]["error"]["code"] == "unsupported_content"
    assert not served.close("long").finished()


def test_a_path_that_there_is_not_is_answered_in_the_same_form(served: Endpoint) -> None:
    assert served._socket.getsockname()[0] == "127.0.0.1", "it listens on the loopback address alone"
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    for method, path in (("GET", "/"), ("GET", "/a/b/v1/chat/completions"), ("DELETE", "/v1/models"), ("POST", "/a/../v1/x")):
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status in (401, 404, 405)
        assert json.loads(answer.read())["error"]["message"]
    connection.close()


def blocked(patched: pytest.MonkeyPatch, target: Any, name: str, hostile: Callable[..., bool]) -> tuple[threading.Event, threading.Event]:
    """A function that does not return from a hostile call before the second event is set; the first says that it was entered."""
    entered, leave, real = threading.Event(), threading.Event(), getattr(target, name)

    def stuck(*values: Any) -> Any:
        if hostile(*values):
            entered.set()
            leave.wait(60)
        return real(*values)

    patched.setattr(target, name, stuck)
    return entered, leave


LARGE_TOOL = {"type": "function", "function": {**WEATHER["function"], "description": "x " * 50_000}}  # type: ignore[dict-item]
BOTH = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
HOSTILE: dict[str, tuple[Any, str, Callable[..., bool], dict[str, Any]]] = {
    "a large body is read": (app, "load_body", lambda body: len(body) > 20_000, {"metadata": {"x": ["y"] * 20_000}}),
    "tools are tokenised": (Dialogue, "opening_ids", lambda own, talk, tools, request: bool(tools), {"tools": [LARGE_TOOL]}),
    "a schema is tokenised": (
        Dialogue, "opening_ids", lambda own, talk, tools, request: bool(request),
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"description": "x " * 50_000}}}},
    ),
    "many messages are rendered": (
        Dialogue, "opening_ids", lambda own, talk, tools, request: len(talk) > 100, {"messages": [user("a")] * 150},
    ),
    "an answer is checked": (
        calling, "mismatch", lambda text, schema: True, {"response_format": {"type": "json_schema", "json_schema": {"schema": BOTH}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_others_are_answered_while_a_hostile_request_is_prepared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, function, hostile, body = HOSTILE[name]
    made, _ = scripted("{}", "{}", "{}")
    with made, ThreadPoolExecutor(1) as others:
        bad, good = made.open("bad"), made.open("good")
        entered, leave = blocked(monkeypatch, target, function, hostile)
        waiting = others.submit(post, bad, "/chat/completions", {"messages": [user("a")], **body})
        try:
            assert entered.wait(20)
            assert said(ask(good, [user("b")]))["content"] == "{}"
            assert post(bad, "/reward", {"value": 1})[0] == 200, "nor does the attempt's own side channel wait"
            assert not waiting.done()
        finally:
            leave.set()
        assert waiting.result()[0] == 200


def test_what_takes_too_long_to_prepare_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = scripted("one", "two", limits=Limits(prepare_seconds=0.3))
    with made:
        bad, good = made.open("bad"), made.open("good")
        entered, leave = blocked(monkeypatch, Dialogue, "opening_ids", lambda own, talk, tools, request: bool(tools))
        try:
            for _ in range(6):  # more than there are threads: those of this attempt wait for each other
                status, body = post(bad, "/chat/completions", {"messages": [user("a")], "tools": [LARGE_TOOL]})
                assert (status, body["error"]["code"]) == (503, "timeout")
            assert entered.is_set()
            assert ask(good, [user("hello " * 5000)])
        finally:
            leave.set()
        assert made.recorder("bad").running == 0


def test_a_schema_is_checked_in_a_bounded_number_of_steps() -> None:
    assert not mismatch("3", BOTH)
    levels: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(30)}
    chain = {"$ref": "#/$defs/d0", "$defs": {**levels, "d30": {"type": "string"}}}
    assert not mismatch('"a"', chain)
    with pytest.raises(TooCostly):
        mismatch("3", chain)
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "v": {"type": "number"}}, "additionalProperties": False}
    assert not mismatch('{"left": {"v": 1, "right": {"v": 2}}, "right": {"v": 1}}', tree)
    assert mismatch('{"left": {"v": 1, "right": {"v": "2"}}}', tree)
    with pytest.raises(TooCostly):
        mismatch("[0]", {"items": {"enum": ["x"] * 300_000}})
    assert not mismatch('"a"', {"$ref": "http://127.0.0.1:1/schema"}), "nothing is fetched"


def test_a_schema_that_is_too_costly_to_check_is_not_the_models_fault() -> None:
    made, _ = scripted("[0]")
    with made:
        opened = made.open("a")
        form = {"type": "json_schema", "json_schema": {"schema": {"items": {"enum": [""] * 230_000}}}}
        assert "turnwise" not in ask(opened, [user("a")], response_format=form)
        assert not made.close("a").calls[0].problem


DEEP = "[" * 150 + "]" * 150
LONG = "a" * (1 << 20)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"messages": [{"role": "user", "content": "a", "x": ' + DEEP.encode() + b"}]}", 400, "more than 100 levels"),
        (b'{"messages": [], "tools": ' + b"[" * 100_000, 400, "not JSON"),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}', 400, "not JSON"),
        ({"messages": [user("a")], "tools": [WEATHER] * 6000}, 400, "at most 1000"),
        ({"messages": [user("a")], "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]}, 413, "schema"),
        ({"messages": [user("a")], "response_format": {"type": "json_schema", "schema": {"enum": ["a" * (1 << 20)]}}}, 413, "schema"),
        ({"messages": [user("a")], "stop": ["a" * 257]}, 400, "at most 256 characters"),
    ],
)  # fmt: skip
def test_a_request_beyond_a_limit_is_told_which(body: Any, status: int, message: str) -> None:
    made, engine = scripted()
    with made:
        opened = made.open("a")
        found, text = post(opened, "/chat/completions", body)
        assert found == status
        assert message in text["error"]["message"]
        assert not engine.requests


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/reward"])
def test_a_client_that_sends_too_much_is_told_so(path: str, chunked: bool) -> None:
    """It sends all of its body before it reads the answer, as most clients do."""
    made, _ = scripted("Fine.")
    with made:
        opened = made.open("a")
        address = urlsplit(opened.base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        body = iter([b"x" * (1 << 20)] * 12) if chunked else b"x" * (12 << 20)
        connection.request("POST", address.path + path, body, {"Authorization": f"Bearer {opened.key}"}, encode_chunked=chunked)
        answer = connection.getresponse()
        assert answer.status == 413
        assert "bytes" in json.loads(answer.read())["error"]["message"]
        connection.close()
        assert ask(opened, [user("b")])


def test_a_blocked_event_loop_is_reported_instead_of_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CALL_SECONDS", 0.3)
    made, _ = scripted()
    with made:
        leave = threading.Event()
        assert made._loop is not None
        made._loop.call_soon_threadsafe(leave.wait, 60)
        try:
            with pytest.raises(TurnwiseError, match="event loop did not answer"):
                made.open("a")
        finally:
            leave.set()
