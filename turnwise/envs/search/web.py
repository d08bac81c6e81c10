"""The web application of the retrieval server, and the connections of its clients."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnwise.retrieval.base import Hit, Retriever
from turnwise.util.errors import TurnwiseError


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and how many are served at once."""

    body: int = 4 * 2**20
    queries: int = 1024
    query: int = 10_000
    topk: int = 100
    seconds: int = 30
    connections: int = 128
    headers: int = 64 * 2**10


def read_request(raw: bytes, limits: Limits, topk: int) -> tuple[list[str], int, bool]:
    """The queries in a body, how many passages are wanted for each, and whether with scores; `HTTPException` says what is wrong with it.
    `topk` is for requests that name none."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, 'the body is not a JSON object like {"queries": ["…"], "topk": 3}')
    queries, wanted, scores = body.get("queries"), body.get("topk"), body.get("return_scores", False)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise HTTPException(400, "queries is a list of texts")
    if len(queries) > limits.queries or any(len(query) > limits.query for query in queries):
        raise HTTPException(413, f"at most {limits.queries} queries of at most {limits.query} characters")
    wanted = topk if wanted is None else wanted
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= limits.topk:
        raise HTTPException(400, f"topk must be an integer from 1 to {limits.topk}")
    if not isinstance(scores, bool):
        raise HTTPException(400, "return_scores is true or false")
    return [query.encode("utf-8", "replace").decode() for query in queries], wanted, scores


def written(hits: Sequence[Hit], scores: bool) -> list[dict[str, Any]]:
    """The part of the answer about one query."""
    documents = [{"id": hit.passage.id, "contents": hit.passage.contents} for hit in hits]
    if not scores:
        return documents
    return [{"document": document, "score": hit.score} for document, hit in zip(documents, hits, strict=True)]


def answer(content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


async def refused(request: Request, error: Exception) -> Response:
    """The answer to what cannot be answered. The connection ends with it: part of the body may still be on its way."""
    assert isinstance(error, HTTPException)
    return answer({"error": error.detail}, error.status_code, {"Connection": "close"})


class Client(H11Protocol):
    """One connection. It is dropped if its client takes too long for a request, from its first byte to its last, or to read the answer;
    and if all connections are in use, it may be dropped for a new one while it waits for its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        waiting = [one for one in self.connections if isinstance(one, Client) and one.waits]
        if len(self.connections) + 1 >= self.config.limit_concurrency and waiting:  # type: ignore[operator]
            min(waiting, key=lambda one: one.since).drop()
        super().connection_made(transport)
        self._expect()

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: to send the rest of a request, or to read an answer."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def _expect(self) -> None:
        self.since = self.loop.time()
        self._too_late = self.loop.call_later(self.timeout_keep_alive, lambda: self.drop() if self.waits else None)

    def on_response_complete(self) -> None:
        self._too_late.cancel()
        self._expect()
        super().on_response_complete()

    def drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._too_late.cancel()
        super().connection_lost(exc)


class Server:
    """Serves one retriever. One search runs at a time: retrievers need not be thread-safe, and the work would not get faster."""

    def __init__(self, retriever: Retriever, host: str = "127.0.0.1", port: int = 8000, topk: int = 3, limits: Limits | None = None):
        self.retriever, self.topk, self.limits = retriever, topk, limits or Limits()
        self._searching = asyncio.Lock()
        try:
            self._listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise TurnwiseError(f"cannot listen on {host} port {port}: {why}. Choose another --port") from None
        self.host, self.port = self._listening.getsockname()[:2]
        routes = [Route(path, self.retrieve, methods=["POST"]) for path in ("/retrieve", "/retrieve/")]
        app = Starlette(routes=[*routes, Route("/health", self.health)], exception_handlers={HTTPException: refused})
        config = uvicorn.Config(
            app,
            http=Client,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,  # there are thousands of requests per iteration
            proxy_headers=False,
            server_header=False,
            limit_concurrency=self.limits.connections + 1,  # uvicorn refuses when this number is reached
            timeout_keep_alive=self.limits.seconds,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=self.limits.headers,
        )
        self._server = uvicorn.Server(config)

    async def health(self, request: Request) -> Response:
        return answer({"status": "ok"})

    async def retrieve(self, request: Request) -> Response:
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > self.limits.body:
                raise HTTPException(413, f"a body of more than {self.limits.body} bytes")
        queries, topk, scores = read_request(bytes(raw), self.limits, self.topk)
        try:
            async with self._searching:
                found = await asyncio.to_thread(self.retriever.search, queries, topk)
        except Exception as error:  # a retriever's error is reported to the client and must not end the server
            raise HTTPException(500, f"{type(error).__name__}: {error}") from None
        return answer({"result": [written(hits, scores) for hits in found]})

    def serve_forever(self) -> None:
        """Serve until Ctrl-C, or until another thread calls `stop`."""
        self._server.run(sockets=[self._listening])

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
