"""The web server of the endpoint: uvicorn, with a check of all connections every second.

A connection that has not sent the headers of a request in time is closed, and so is one whose client has stopped reading. If there are too
many, those without a request are closed first. A waiting connection does not delay any other.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import uvicorn

from turnwise.engines.serve.calls import Limits

LOOK_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 120


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's if it is installed, which makes a small request a quarter cheaper, otherwise Python's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


async def serve(app: Any, listening: socket.socket, limits: Limits, started: Callable[[Server], None]) -> None:
    """Serve until `end` is called."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=2048,
    )
    server = Server(config)
    server.on_start = started
    watch = asyncio.ensure_future(_watch(server, limits))
    try:
        await server.serve(sockets=[listening])
    finally:
        watch.cancel()


class Server(uvicorn.Server):
    """Signals when it listens, and ends at once on request: a run that trains a program starts one in every iteration."""

    on_start: Callable[[Server], None] = staticmethod(lambda server: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._ended = asyncio.Event()
        await super().startup(sockets)
        self.on_start(self)

    async def main_loop(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        """Stop serving; to be called in the server's loop."""
        self.should_exit = self.force_exit = True
        self._ended.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self.servers:
            one.close()
        for connection in list(self.server_state.connections):
            _abort(connection)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(server: uvicorn.Server, limits: Limits) -> None:
    """Check all connections at regular intervals."""
    stuck: dict[int, tuple[tuple[Any, ...], float]] = {}
    while True:
        await asyncio.sleep(min(LOOK_SECONDS, limits.header_seconds / 2, limits.write_seconds / 2))
        connections = list(server.server_state.connections)
        stuck = _look(connections, stuck, time.monotonic(), limits)


def _look(
    connections: list[Any], stuck: dict[int, tuple[tuple[Any, ...], float]], now: float, limits: Limits
) -> dict[int, tuple[tuple[Any, ...], float]]:
    """Close connections without progress for too long. `stuck` has the state of each connection, and the time of its last change."""
    progress: dict[int, tuple[tuple[Any, ...], float]] = {}
    crowded = len(connections) > limits.connections
    for one in connections:
        unsent = one.transport.get_write_buffer_size() if one.transport is not None else 0
        idle = one.cycle is None or one.cycle.response_complete
        resting = idle and one.timeout_keep_alive_task is not None  # between two requests: uvicorn closes these itself
        state = (unsent, id(one.cycle), idle, resting)
        before = stuck.get(id(one))
        since = before[1] if before is not None and before[0] == state else now
        waits_for_reader = unsent and now - since > limits.write_seconds
        waits_for_headers = idle and not resting and now - since > limits.header_seconds
        if waits_for_reader or waits_for_headers or (crowded and idle and not unsent):
            _abort(one)
        else:
            progress[id(one)] = (state, since)
    return progress


def _abort(connection: Any) -> None:
    with suppress(Exception):
        connection.transport.abort()
