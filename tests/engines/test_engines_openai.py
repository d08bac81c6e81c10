"""A server as an engine, tried against a real one on 127.0.0.1 that answers well, badly, late or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from openai_server import Handler, serving
from test_engines_sampling import byte_tokenizer

from turnwise import TurnwiseError
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.openai import OpenAIEngine, Server

TOKENIZER = byte_tokenizer()


def settings(url: str, **changes: Any) -> Server:
    return Server(url, "a-model", **{"timeout": 20.0, "retries": 3, "first_wait": 0.001, **changes})


def ask(engine: OpenAIEngine, *requests: Request) -> dict[int, Response]:
    engine.submit(requests)
    found: dict[int, Response] = {}
    while engine.pending:
        found |= {response.key: response for response in engine.poll()}
    engine.close()
    return found


def numbered(n: int) -> list[Request]:
    return [Request(key, (key,), Sampling(max_tokens=9), seed=key) for key in range(n)]


def test_a_chat_is_sent_as_messages_and_comes_back_as_text() -> None:
    with serving(lambda handler, body, before: handler.complete("look", finish_reason="length")) as server:
        messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"})
        request = Request(7, (), Sampling(0.5, 0.9, 3, 0.1, 20, ("\n",)), seed=2**40 + 5, messages=messages)
        found = ask(OpenAIEngine(settings(server.url)), request)
        [(path, body, _)] = server.seen
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "a-model",
        "messages": [dict(message) for message in messages],
        "max_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "stop": ["\n"],
        "seed": 5,
    }
    assert found[7] == Response(7, (), (), Finish.LENGTH, "", "look")


def test_token_ids_are_sent_as_text_with_a_tokenizer_and_as_they_are_without() -> None:
    ids = tuple(TOKENIZER.encode("où?"))
    with serving(lambda handler, body, before: handler.complete("là")) as server:
        found = ask(OpenAIEngine(settings(server.url), TOKENIZER), Request(0, ids, Sampling()))
        ask(OpenAIEngine(settings(server.url)), Request(0, ids, Sampling()))
        ask(OpenAIEngine(settings(server.url, form="ids"), TOKENIZER), Request(0, ids, Sampling()))
        assert [(path, body["prompt"]) for path, body, _ in server.seen] == [
            ("/v1/completions", "où?"),
            ("/v1/completions", list(ids)),
            ("/v1/completions", list(ids)),
        ]
    assert found[0].text == "là" and TOKENIZER.decode(found[0].token_ids) == "là" and found[0].logprobs == ()


def test_exact_tokens_log_probs_and_the_stop_string_are_taken_where_the_server_gives_them() -> None:
    exact = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -1.5]}, "stop_reason": "</a>"}
    with serving(lambda handler, body, before: handler.complete("<a>go", **exact)) as server:
        own = settings(server.url, form="ids", logprobs=True, extra={"return_token_ids": True}, omit=("seed",), limit_field="max_new")
        found = ask(OpenAIEngine(own), Request(0, (1,), Sampling(stop=("</a>",))))
        [(_, body, _)] = server.seen
    assert found[0] == Response(0, (5, 6), (-0.5, -1.5), Finish.STOP, "", "<a>go</a>")
    assert body["return_token_ids"] is True and body["logprobs"] == 1 and body["max_new"] == 128
    assert "seed" not in body and "max_tokens" not in body


def test_what_a_server_cannot_do_is_an_error() -> None:
    engine = OpenAIEngine(settings("http://127.0.0.1:1/v1"))
    with pytest.raises(TurnwiseError, match="cannot report 'entropy': it reports nothing"):
        engine.submit([Request(0, (1,), Sampling(report=("entropy",)))])
    with pytest.raises(TurnwiseError, match="its own weights"):
        engine.publish(1)


def drop(handler: Handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(2)


def half_a_body(handler: Handler) -> None:
    handler.answer(b'{"choices": [{"text": ', Content_Length="500")
    drop(handler)


def half_a_chunk(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b'100\r\n{"choices"')
    drop(handler)


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff garbage\r\n\r\n")
    drop(handler)


TROUBLES: dict[str, Callable[[Handler], None]] = {
    "server error": lambda handler: handler.answer({"error": {"message": "the cat is on the rack"}}, 500),
    "too many": lambda handler: handler.answer({"error": {"message": "slow down"}}, 429, Retry_After="0"),
    "gateway page": lambda handler: handler.answer(b"<html>\xff bad gateway</html>", 502),
    "connection dropped": drop,
    "half a body": half_a_body,
    "half a chunk": half_a_chunk,
    "no HTTP": no_http,
    "no JSON": lambda handler: handler.answer(b"nonsense"),
    "deep JSON": lambda handler: handler.answer(b"[" * 200000),
    "a list": lambda handler: handler.answer([1, 2]),
    "no choices": lambda handler: handler.answer({"choices": []}),
    "nothing": lambda handler: handler.answer(b""),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_can_pass_is_tried_again_and_what_does_not_pass_is_a_fault_of_that_request_alone(trouble: str) -> None:
    def behave(handler: Handler, body: dict[str, Any], before: int) -> None:
        TROUBLES[trouble](handler) if before < 2 or body["prompt"] == [1] else handler.complete()

    with serving(behave) as server:
        found = ask(OpenAIEngine(settings(server.url, retries=2)), *numbered(4))
        assert len(server.seen) == 12
    assert [found[key].finish for key in range(4)] == [Finish.STOP, Finish.FAULT, Finish.STOP, Finish.STOP]
    assert all(found[key].text == "go north" for key in (0, 2, 3))
    assert "tried 3 times" in found[1].message and server.url in found[1].message


@pytest.mark.parametrize(
    ("status", "error", "finish"),
    [
        (400, {"error": {"message": "no such model: a-model"}}, Finish.FAULT),
        (401, {"error": "bad key sk-secret"}, Finish.FAULT),
        (404, {"detail": "Not Found"}, Finish.FAULT),
        (400, {"error": {"code": "context_length_exceeded", "message": "shorten it"}}, Finish.REFUSED),
        (400, {"message": "This model's maximum context length is 16 tokens."}, Finish.REFUSED),
    ],
)
def test_what_cannot_pass_is_not_tried_again_and_given_in_the_servers_words(
    status: int, error: dict[str, Any], finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving(lambda handler, body, before: handler.answer(error, status)) as server:
        found = ask(OpenAIEngine(settings(server.url, key_variable="MY_KEY")), *numbered(1))
        assert len(server.seen) == 1
        assert server.seen[0][2]["Authorization"] == "Bearer sk-secret"
    assert found[0].finish is finish
    words = str(error.get("error", error)).replace("sk-secret", "***")
    assert f"HTTP {status}" in found[0].message and "sk-secret" not in found[0].message
    assert any(part in found[0].message for part in (words, "no such model", "Not Found", "shorten it", "maximum context length is 16"))


def test_a_server_that_says_when_to_come_back_is_obeyed() -> None:
    times: list[float] = []

    def behave(handler: Handler, body: dict[str, Any], before: int) -> None:
        times.append(time.monotonic())
        handler.complete() if before else handler.answer({}, 503, Retry_After="1")

    with serving(behave) as server:
        found = ask(OpenAIEngine(settings(server.url)), *numbered(1))
    assert found[0].finish is Finish.STOP and times[1] - times[0] >= 1.0
    with serving(lambda handler, body, before: handler.answer({}, 429, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT")) as server:
        found = ask(OpenAIEngine(settings(server.url)), *numbered(1))
        assert len(server.seen) == 1
    assert found[0].finish is Finish.FAULT and "more than longest_wait=60" in found[0].message


def hang(handler: Handler) -> None:
    handler.server.release.wait(30)


def drip(handler: Handler) -> None:
    """A server that always sends a little more, so that no single wait is long."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.release.wait(0.05):
        handler.wfile.write(b" ")


@pytest.mark.parametrize("slow", [hang, drip])
def test_a_server_that_hangs_costs_its_time_limit_and_no_more(slow: Callable[[Handler], None]) -> None:
    def behave(handler: Handler, body: dict[str, Any], before: int) -> None:
        slow(handler) if body["prompt"] == [0] else handler.complete()

    with serving(behave) as server:
        server.release = threading.Event()
        try:
            found = ask(OpenAIEngine(settings(server.url, timeout=0.5, retries=1)), *numbered(3))
        finally:
            server.release.set()
    assert found[0].finish is Finish.FAULT and "no answer within 0.5 s (tried 2 times)" in found[0].message
    assert found[1].finish is found[2].finish is Finish.STOP


def test_no_server_at_all_is_a_fault() -> None:
    with serving(lambda handler, body, before: handler.complete()) as server:
        url = server.url
    found = ask(OpenAIEngine(settings(url, retries=1)), *numbered(2))
    assert all(response.finish is Finish.FAULT and "connection failed" in response.message for response in found.values())


def test_no_more_requests_run_at_once_than_allowed_and_all_are_answered() -> None:
    def behave(handler: Handler, body: dict[str, Any], before: int) -> None:
        time.sleep(0.01)
        handler.complete(str(body["prompt"][0]))

    with serving(behave) as server:
        found = ask(OpenAIEngine(settings(server.url, concurrency=3)), *numbered(20))
        assert 1 <= server.most <= 3
    assert {key: response.text for key, response in found.items()} == {key: str(key) for key in range(20)}


def test_closing_gives_up_what_is_under_way() -> None:
    with serving(lambda handler, body, before: hang(handler)) as server:
        server.release = threading.Event()
        engine = OpenAIEngine(settings(server.url))
        engine.submit(numbered(2))
        threads = list(engine._threads)
        while len(server.seen) < 2:
            time.sleep(0.01)
        engine.close()
        for thread in threads:
            thread.join(20)
        server.release.set()
    assert not any(thread.is_alive() for thread in threads)
    assert engine.pending == 0 and engine.poll() == []
    with pytest.raises(TurnwiseError, match="closed"):
        engine.submit(numbered(1))


def test_a_chat_without_messages_is_a_fault_that_says_what_to_use() -> None:
    with serving(lambda handler, body, before: handler.complete()) as server:
        found = ask(OpenAIEngine(settings(server.url, form="chat")), *numbered(1))
        assert not server.seen
    assert found[0].finish is Finish.FAULT and "use form 'text' or 'ids'" in found[0].message


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(TurnwiseError, match="read from NO_SUCH_KEY"):
        OpenAIEngine(Server("http://127.0.0.1:1/v1", "m", key_variable="NO_SUCH_KEY"))
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://127.0.0.1:notaport"):
        with pytest.raises(TurnwiseError, match="server"):
            OpenAIEngine(Server(url, "m"))
    for wrong in ({"concurrency": 0}, {"timeout": 0.0}, {"retries": -1}, {"form": "carrier pigeon"}):
        with pytest.raises(TurnwiseError, match="cannot be"):
            Server("http://127.0.0.1/v1", "m", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TurnwiseError, match="needs a tokenizer"):
        OpenAIEngine(Server("http://127.0.0.1/v1", "m", form="text"))
