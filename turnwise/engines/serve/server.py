"""The web server under the endpoint: uvicorn, with limits of its own on connections that say or read nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from turnwise.engines.serve.limits import Limits


async def serve(app: Any, listening: socket.socket, limits: Limits, started: Callable[[uvicorn.Server], None]) -> None:
    """Serve until `should_exit` of the server is set."""
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
        timeout_keep_alive=60, server_header=False, date_header=False,
    )  # fmt: skip
    server = _Server(config)
    server.on_start = started
    await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Tells when it listens."""

    on_start: Callable[[uvicorn.Server], None] = staticmethod(lambda server: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start(self)
