"""The retrieval server and its client: the same hits as in this process, requests that are wrong in every way, servers that fail."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from openai_server import serving
from search_data import write_corpus

from turnwise.envs.search.server import main
from turnwise.envs.search.web import Limits, Server
from turnwise.retrieval import Hit, Passage, make_retriever
from turnwise.retrieval.remote import QUERIES_A_REQUEST, Remote
from turnwise.util.errors import TurnwiseError


class Echo:
    """Answers a query with passages made of it. `boom` fails."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        if "boom" in queries:
            raise RuntimeError("the index is gone")
        return [[Hit(Passage(f"{n}", f'T "{query}"', f"text {n}\nof {query}"), 1.5 - n) for n in range(topk)] for query in queries]

    def close(self) -> None: ...


def running(server: Server) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.port
    server.stop()
    thread.join(timeout=10)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    yield from running(Server(Echo(), port=0, limits=Limits(body=5000, queries=300, query=100, topk=10, seconds=1)))


def ask(port: int, body: bytes | Any, path: str = "/retrieve", method: str = "POST") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, json.loads(raw)


def test_the_form_of_requests_and_answers_is_the_fields_own(port: int) -> None:
    status, content = ask(port, {"queries": ["a", "b"], "topk": 2, "return_scores": True})
    assert status == 200
    assert content["result"][1] == [
        {"document": {"id": "0", "contents": '"T "b""\ntext 0\nof b'}, "score": 1.5},
        {"document": {"id": "1", "contents": '"T "b""\ntext 1\nof b'}, "score": 0.5},
    ]
    assert ask(port, {"queries": ["a"]})[1]["result"][0] == [{"id": f"{n}", "contents": f'"T "a""\ntext {n}\nof a'} for n in range(3)]
    assert ask(port, {"queries": [], "topk": None}) == (200, {"result": []})
    assert ask(port, b"", "/health", "GET") == (200, {"status": "ok"})


WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "not JSON"),
    (b"{", 400, "not JSON"),
    (b"[" * 4000, 400, "not JSON"),
    (b"\xff\xfe", 400, "not JSON"),
    ([], 400, "JSON object"),
    ({}, 400, "list of texts"),
    ({"queries": "a"}, 400, "list of texts"),
    ({"queries": [1]}, 400, "list of texts"),
    ({"queries": ["a"], "topk": 0}, 400, "from 1 to 10"),
    ({"queries": ["a"], "topk": 11}, 400, "from 1 to 10"),
    ({"queries": ["a"], "topk": True}, 400, "from 1 to 10"),
    ({"queries": ["a"], "topk": "3"}, 400, "from 1 to 10"),
    ({"queries": ["a"], "return_scores": "yes"}, 400, "true or false"),
    ({"queries": ["a" * 101]}, 413, "100 characters"),
    ({"queries": [""] * 301}, 413, "300 queries"),
    (b"x" * 5001, 413, "5000 bytes"),
    ({"queries": ["boom"]}, 500, "the index is gone"),
]


@pytest.mark.parametrize(("body", "status", "words"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_request_is_told_what_is_wrong_and_harms_no_other(port: int, body: Any, status: int, words: str) -> None:
    found, content = ask(port, body)
    assert found == status and words in content["error"]
    assert ask(port, {"queries": ["a"]})[0] == 200


def test_other_paths_and_methods_are_refused(port: int) -> None:
    assert ask(port, {"queries": ["a"]}, "/other")[0] == 404
    assert ask(port, b"", "/retrieve", "GET")[0] == 405
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("DELETE", "/retrieve")
    assert connection.getresponse().status == 405


@pytest.mark.parametrize("length", [None, "-1", "1_0", "0x5", "99999999999999999999999", "4", "²", "0" * 30 + "5001"])
def test_a_wrong_length_ends_that_connection_alone(port: int, length: str | None) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        head = "POST /retrieve HTTP/1.1\r\nHost: x\r\n" + (f"Content-Length: {length}\r\n" if length else "") + "\r\n"
        raw.sendall(head.encode() + b"{}")
        raw.shutdown(socket.SHUT_WR)
        said = raw.recv(65536)
        assert said.startswith(b"HTTP/1.1 4") or said == b""
    assert ask(port, {"queries": ["a"]})[0] == 200


def said_to(port: int, head: str, body: bytes = b"") -> bytes:
    """What the server answers to raw bytes, until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(f"POST /retrieve HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
        parts = []
        while piece := raw.recv(65536):
            parts.append(piece)
        return b"".join(parts)


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 2\r\nContent-Length: 30\r\n",
        "Content-Length: 2\r\nContent-Length: 2\r\n",
        "Content-Length: 2, 2\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
    ],
)
def test_a_body_whose_end_is_in_doubt_is_refused_with_the_connection(port: int, head: str) -> None:
    answer = said_to(port, head, b"{}GET /health HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 4") and answer.count(b"HTTP/1.1") == 1


def test_headers_have_a_size(port: int) -> None:
    assert said_to(port, "".join(f"X-{n}: {'a' * 5000}\r\n" for n in range(20))).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("start", [b"", b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"], ids=["headers", "body"])
def test_a_client_that_sends_a_byte_now_and_then_is_let_go(start: bytes) -> None:
    for port in running(Server(Echo(), port=0, limits=Limits(seconds=1))):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
            raw.sendall(start)
            with pytest.raises(OSError):  # the server ends the connection while we are still sending
                while True:
                    raw.sendall(b"a")
                    raw.settimeout(0.05)
                    try:
                        assert not raw.recv(1)
                        raise ConnectionError
                    except TimeoutError:
                        continue


def test_slow_clients_keep_nobody_out() -> None:
    for port in running(Server(Echo(), port=0, limits=Limits(connections=4, seconds=60))):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(12)]
        for connection in slow[-4:]:
            connection.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        for _ in range(6):
            assert ask(port, {"queries": ["a"]})[0] == 200
        for connection in slow:
            connection.close()


def test_more_clients_than_can_be_served_are_asked_to_come_back() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Echo):
        def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
            begun.set()
            assert go_on.wait(30)
            return super().search(queries, topk)

    for port in running(Server(Slow(), port=0, limits=Limits(connections=1))):
        first = threading.Thread(target=ask, args=(port, {"queries": ["a"]}))
        first.start()
        assert begun.wait(30)
        assert said_to(port, "").startswith(b"HTTP/1.1 503")
        go_on.set()
        first.join(30)
        remote = Remote(f"http://127.0.0.1:{port}", timeout=10, retries=20, first_wait=0.01)
        assert remote.search(["a"], 1)[0][0].passage.title == 'T "a"'


def test_the_server_listens_on_this_machine_alone_unless_told() -> None:
    server = Server(Echo(), port=0)
    assert server.host == "127.0.0.1"
    with pytest.raises(TurnwiseError, match="Choose another --port"):
        Server(Echo(), port=server.port)
    server.stop()
    server.serve_forever()


def test_the_client_gets_what_the_retriever_finds(port: int) -> None:
    remote = Remote(f"http://127.0.0.1:{port}/retrieve/", timeout=10)
    queries = [f"q{n}" for n in range(QUERIES_A_REQUEST + 3)]
    assert remote.search(queries, 2) == Echo().search(queries, 2)
    assert remote.search([], 2) == []


def scripted(*replies: tuple[int, bytes]) -> AbstractContextManager[Any]:
    """A server that gives these replies, one a request, the last one again and again."""
    return serving(lambda handler, _, before: handler.answer(*reversed(replies[min(before, len(replies) - 1)])))


GOOD = json.dumps({"result": [[{"document": {"id": 5, "contents": "T\nx"}, "score": 2}]]}).encode()


def test_what_passes_is_tried_again() -> None:
    with scripted((503, b""), (500, b'{"detail": "busy"}'), (200, b"not json"), (200, GOOD)) as server:
        assert Remote(server.url, first_wait=0.001).search(["q"], 1) == [[Hit(Passage("5", "T", "x"), 2.0)]]
    assert [body for _, body, _ in server.seen] == [{"queries": ["q"], "topk": 1, "return_scores": True}] * 4


def test_waits_grow_and_a_server_that_stays_down_is_named() -> None:
    waits: list[float] = []
    with scripted((500, b'{"detail": "out of memory"}')) as server:
        remote = Remote(server.url, retries=4, first_wait=1.0)
        remote._sleep = waits.append
        with pytest.raises(TurnwiseError, match=rf"{server.url}/retrieve: HTTP 500: out of memory \(tried 5 times\)"):
            remote.search(["q"], 1)
    assert len(server.seen) == 5 and all(0.5 * 2**n <= wait <= 2**n for n, wait in enumerate(waits))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (422, b'{"detail": "topk"}', "HTTP 422: topk"),
        (200, b"{}", "not a list of 1 lists"),
        (200, b'{"result": [[], []]}', "not a list of 1 lists"),
        (200, b'{"result": [7]}', "not a list of 1 lists"),
        (200, b'{"result": [[7]]}', "neither a document"),
        (200, b'{"result": [[{"document": {"contents": "x"}, "score": "high"}]]}', "neither a document"),
        (200, b'{"result": [[{"id": "1"}]]}', "neither .contents. nor .text."),
    ],
)
def test_what_does_not_pass_is_an_error_at_once(status: int, body: bytes, words: str) -> None:
    with scripted((status, body)) as server, pytest.raises(TurnwiseError, match=words):
        Remote(server.url, first_wait=0.001).search(["q"], 1)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "entry",
    [{"id": "T", "contents": '"T"\nx'}, {"document": {"id": "T", "title": "T", "text": "x"}}, {"title": "T", "text": "x"}, "T\nx"],
)
def test_small_differences_between_servers_are_read(entry: Any) -> None:
    with scripted((200, json.dumps({"result": [[entry] * 5]}).encode())) as server:
        (hits,) = Remote(server.url).search(["q"], 3)
    assert len(hits) == 3 and (hits[0].passage.title, hits[0].passage.text) == ("T", "x") and hits[0].passage.id


def test_nobody_listening_and_silence_are_errors_that_say_so() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TurnwiseError, match="Is it running"):
            Remote(url, retries=1, first_wait=0.001).search(["q"], 1)
        silent.listen()
        with pytest.raises(TurnwiseError, match=r"no answer within 0\.2 s"):
            Remote(url, timeout=0.2, retries=0).search(["q"], 1)
    for wrong in ({"url": "nonsense"}, {"url": "http://x", "timeout": 0}, {"url": "http://x", "retries": -1}):
        with pytest.raises(TurnwiseError):
            Remote(**wrong)  # type: ignore[arg-type]


def test_the_command_serves_a_corpus(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "passages.jsonl")
    command = [sys.executable, "-m", "turnwise.envs.search.server", "--corpus", str(corpus), "--port", "0"]
    environment = {"TURNWISE_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            hits = make_retriever(url).search(["capital of England"], 2)[0]
            assert [hit.passage.title for hit in hits] == ["London"]
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--corpus", "/nowhere.jsonl"], "no such corpus"),
        (["--data", "/nowhere"], "found none"),
        (["--corpus", "{corpus}", "--port", "70000"], "port 70000"),
        (["--corpus", "{corpus}", "--retriever", "{{bad"], "--retriever {bad: not JSON"),
    ],
)
def test_the_command_tells_what_is_wrong(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    corpus = str(write_corpus(tmp_path / "passages.jsonl"))
    assert main(["--port", "0", *(word.format(corpus=corpus) for word in arguments)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and words in told


def test_without_the_web_server_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "turnwise.envs.search.web", None)
    assert main([]) == 2
    assert "[serve]" in capsys.readouterr().err
