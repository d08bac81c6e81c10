"""A small retrieval server with the protocol that is usual in this field, for many environments or machines that share one index.

    python -m turnwise.envs.search.server --port 8000                          # BM25 over the usual corpus
    python -m turnwise.envs.search.server --retriever '{"name": "dense", "model": "path/to/encoder"}'

    POST /retrieve   {"queries": ["…"], "topk": 3, "return_scores": true}  →  {"result": [[{"document": {"id", "contents"}, "score"}, …]]}
    GET  /health     {"status": "ok"}

It listens on the loopback address by default and has no authentication: expose it to trusted networks only. The size of a request, its
number of queries and its time, from the first byte to the last, are limited; an error is reported in the answer and does not affect other
requests. If all connections are in use, the client that has been sending or reading for longest is dropped: slow clients block no others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.envs.search.questions import find_corpus, find_data
from turnwise.retrieval.base import Hit, Retriever
from turnwise.retrieval.kinds import make_retriever
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import say


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and how many are served at once."""

    body: int = 4 * 2**20
    queries: int = 1024
    query: int = 10_000
    topk: int = 100
    seconds: float = 30.0
    connections: int = 128
    headers: int = 64 * 2**10


class Refused(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Asked(NamedTuple):
    """A valid request."""

    queries: list[str]
    topk: int
    return_scores: bool


def read_request(raw: bytes, limits: Limits, topk: int) -> Asked:
    """The request in a body; `Refused` says what is wrong with it. `topk` is for requests that name none."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, 'the body is not a JSON object like {"queries": ["…"], "topk": 3}')
    queries, wanted, scores = body.get("queries"), body.get("topk"), body.get("return_scores", False)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise Refused(400, "queries is a list of texts")
    if len(queries) > limits.queries or any(len(query) > limits.query for query in queries):
        raise Refused(413, f"at most {limits.queries} queries of at most {limits.query} characters")
    wanted = topk if wanted is None else wanted
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= limits.topk:
        raise Refused(400, f"topk must be an integer from 1 to {limits.topk}")
    if not isinstance(scores, bool):
        raise Refused(400, "return_scores is true or false")
    return Asked([query.encode("utf-8", "replace").decode() for query in queries], wanted, scores)


def written(hits: Sequence[Hit], scores: bool) -> list[dict[str, Any]]:
    """The part of the answer about one query."""
    documents = [{"id": hit.passage.id, "contents": hit.passage.contents} for hit in hits]
    if not scores:
        return documents
    return [{"document": document, "score": hit.score} for document, hit in zip(documents, hits, strict=True)]


class Server(ThreadingHTTPServer):
    """Serves one retriever. One search runs at a time: retrievers need not be thread-safe, and the work would not get faster."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, retriever: Retriever, host: str = "127.0.0.1", port: int = 8000, topk: int = 3, limits: Limits | None = None):
        self.retriever, self.topk, self.limits = retriever, topk, limits or Limits()
        self._searching = threading.Lock()
        self._places = threading.BoundedSemaphore(self.limits.connections)
        self._waiting: dict[Any, float] = {}  # connections that wait for their client, and since when
        self._watch = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise TurnwiseError(f"cannot listen on {host} port {port}: {why}. Choose another --port") from None

    def search(self, asked: Asked) -> dict[str, Any]:
        with self._searching:
            found = self.retriever.search(asked.queries, asked.topk)
        return {"result": [written(hits, asked.return_scores) for hits in found]}

    def waits_for_client(self, request: Any) -> None:
        """From now on the connection may be dropped to make room."""
        with self._watch:
            self._waiting.setdefault(request, time.monotonic())

    def works(self, request: Any) -> None:
        """From now on the connection is being answered, or gone."""
        with self._watch:
            self._waiting.pop(request, None)

    def _make_room(self) -> bool:
        """Drop the connection that has waited longest for its client; returns whether one became free."""
        with self._watch:
            slowest = min(self._waiting, key=lambda known: self._waiting[known], default=None)
            if slowest is None:
                return False
            del self._waiting[slowest]
            with contextlib.suppress(OSError):
                slowest.shutdown(socket.SHUT_RDWR)  # its thread then ends by itself
        return self._places.acquire(timeout=1.0)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False) and not self._make_room():
            try:
                request.settimeout(1.0)
                request.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except OSError:
                pass
            self.shutdown_request(request)
            return
        self.waits_for_client(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.works(request)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that disconnect are not an error."""


class Timed(io.RawIOBase):
    """Reads from a client until a deadline: a socket's timeout is for one chunk only, and chunks of one byte would never reach it."""

    def __init__(self, connection: socket.socket):
        self._connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    server_version = "turnwise-retrieval"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.seconds)
        self._timed = Timed(self.connection)
        self.rfile = io.BufferedReader(self._timed)

    def handle_one_request(self) -> None:
        self._timed.until = time.monotonic() + self.server.limits.seconds
        self.server.waits_for_client(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if sum(len(name) + len(value) for name, value in self.headers.items()) > self.server.limits.headers:
            self.send_error(431)
            return False
        return True

    def do_POST(self) -> None:
        try:
            raw = self._body()
            self.server.works(self.connection)
            if self.path.rstrip("/") != "/retrieve":
                raise Refused(404, f"there is no {self.path[:100]}: POST /retrieve")
            self._answer(200, self.server.search(read_request(raw, self.server.limits, self.server.topk)))
        except Refused as refusal:
            self._answer(refusal.status, {"error": str(refusal)})
        except TimeoutError:
            self.close_connection = True
        except Exception as error:  # a retriever's error is reported to the client and must not end the server
            self._answer(500, {"error": f"{type(error).__name__}: {error}"})

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"status": "ok"})
        else:
            self._answer(404, {"error": "POST /retrieve, or GET /health"})

    def _body(self) -> bytes:
        """The body, whose length must be given exactly once. After any other request the connection ends, because the start of the next
        one is unknown."""
        given, keeps = self.headers.get_all("Content-Length", []), self.close_connection
        self.close_connection = True
        if self.headers.get("Transfer-Encoding") is not None:
            raise Refused(411, "the body has a Content-Length; Transfer-Encoding is not read")
        if len(given) != 1 or not re.fullmatch(r"0*[0-9]{1,18}", given[0].strip(" \t"), re.ASCII):
            raise Refused(411 if not given else 400, "Content-Length is missing, given twice or not a number")
        length = int(given[0].strip(" \t").lstrip("0") or "0")
        if length > self.server.limits.body:
            raise Refused(413, f"a body of more than {self.server.limits.body} bytes")
        raw = self.rfile.read(length)
        if len(raw) < length:
            raise Refused(400, "the body ended early")
        self.close_connection = keeps
        return raw

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        raw = json.dumps(content).encode()
        self.connection.settimeout(self.server.limits.seconds)  # for all of the answer
        self.server.waits_for_client(self.connection)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """There are thousands of requests per iteration: none is logged."""


def _kind(given: str) -> Any:
    try:
        return json.loads(given) if given.lstrip().startswith("{") else given
    except ValueError as error:
        raise TurnwiseError(f'--retriever {given}: not JSON ({error}). Write a name, or a table like {{"name": "dense", …}}') from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m turnwise.envs.search.server", description="A retrieval server: POST /retrieve.")
    parser.add_argument("--corpus", help="the file of passages; default: the one in --data")
    parser.add_argument("--data", help="the folder with the question sets and the corpus; default: the usual places")
    parser.add_argument("--retriever", default="bm25", help='bm25, or JSON with a name and options, e.g. {"name": "dense", "model": "…"}')
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; default: this machine only")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--topk", type=int, default=3, help="passages for requests that do not say how many")
    parser.add_argument("--cache", type=int, default=100_000, help="answers to remember")
    given = parser.parse_args(arguments)
    try:
        kind = _kind(given.retriever)
        corpus = Path(given.corpus) if given.corpus else find_corpus(Path(given.data).expanduser() if given.data else find_data())
        server = Server(make_retriever(kind, corpus, given.cache), given.host, given.port, given.topk)
    except TurnwiseError as error:
        say(f"error: {error}", err=True)
        return 2
    say(f"serving {corpus} at http://{given.host}:{server.server_address[1]}/retrieve")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
