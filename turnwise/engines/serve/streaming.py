"""Streams as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Events(Response):
    """Server-sent events from an iterator of bodies. `named` puts the type of each body before it, as the Responses form does."""

    media_type = "text/event-stream"

    def __init__(self, bodies: AsyncIterator[dict[str, Any]], named: bool = False):
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.bodies, self.named = bodies, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for body in self.bodies:
            name = f"event: {body['type']}\n" if self.named else ""
            await send({"type": "http.response.body", "body": f"{name}data: {written(body)}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"" if self.named else b"data: [DONE]\n\n"})


def written(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace").decode()
