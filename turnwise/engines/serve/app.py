"""The web application: keys, routes, requests and answers. All runs in the event loop's thread; large bodies are read in another."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnwise.engines.serve.asked import Asked, Refused, load_body, number, read_chat, shown, text
from turnwise.engines.serve.calling import LIMIT, Attempt, Caller
from turnwise.engines.serve.calls import Limits, digests
from turnwise.engines.serve.forms import chunks, completion, events, read_responses, response
from turnwise.engines.serve.live import Live

log = logging.getLogger("turnwise.endpoint")
ANCHOR = "x-turnwise-anchor"
LONGEST_ANCHOR, LONGEST_NOTE = 10_000, 10_000
LARGEST_SMALL = 1 << 17  # bytes of a reward or an anchor
SHOWN_CALLS = 8
LARGE = 1 << 14  # bytes of a body from which on it is read in another thread
NOBODY = "0" * 43  # compared with where there is no such attempt, so that it takes as long
Handler = Callable[[Attempt, Request], Awaitable[Response]]


@dataclass(eq=False)
class Service:
    """The open attempts, by the part of the URL that names them; `alone` is the attempt without such a part, of an endpoint for use."""

    caller: Caller
    limits: Limits
    model: str = "turnwise"
    attempts: dict[str, Attempt] = field(default_factory=dict)
    alone: Attempt | None = None
    running: int = 0

    def __post_init__(self) -> None:
        self._handlers: dict[str, tuple[str, Handler]] = {
            "chat/completions": ("POST", self.chat),
            "responses": ("POST", self.responses),
            "models": ("GET", self.models),
            "reward": ("POST", self.reward),
            "anchor": ("POST", self.anchor),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. A client without a key is rejected before its body is read; every error is in OpenAI's form."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            token, handler = self._route(scope["method"], scope["path"])
            reply = await handler(self._attempt(token, request), request)
        except Refused as refused:
            reply = answer(refused.body(), refused.status)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("a request could not be answered")
            reply = answer(Refused(500, "this request could not be answered", "internal", "server_error").body(), 500)
        await reply(scope, receive, send)

    def _route(self, method: str, path: str) -> tuple[str | None, Handler]:
        """The attempt that a path names, None if it names none, and what it asks for."""
        parts = path.split("/")
        token, rest = (parts[2], parts[3:]) if len(parts) > 3 and parts[1] == "a" else (None, parts[1:])
        route = self._handlers.get("/".join(rest[1:3])) if rest[0] == "v1" and len(rest) in (2, 3) else None
        if route is None and rest[:2] == ["v1", "models"]:
            route = ("GET", self.models)
        if route is None:
            raise Refused(404, "there is no such path here", "not_found")
        if route[0] != method:
            raise Refused(405, f"this path takes {route[0]}", "not_found")
        return token, route[1]

    def _attempt(self, token: str | None, request: Request) -> Attempt:
        """The attempt of a URL, if the key belongs to it. A client with another key does not learn whether there is such an attempt."""
        attempt = self.alone if token is None else self.attempts.get(token)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(key.strip().encode(), (NOBODY if attempt is None else attempt.recorder.key).encode())
        if attempt is None or not same or scheme.lower() != "bearer":
            raise Refused(401, "this base URL and key do not belong together", "invalid_api_key", "authentication_error")
        return attempt

    async def _body(self, request: Request) -> bytes:
        """The body within its limits of size and time."""
        most = self.limits.body_bytes
        parts, size = list[bytes](), 0
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > most:
            raise Refused(413, f"the body has more than {most} bytes", "body_too_large")
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise Refused(413, f"the body has more than {most} bytes", "body_too_large")
                    parts.append(part)
                return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", "timeout") from None

    async def _read(self, attempt: Attempt, request: Request, form: Callable[[dict[str, Any]], Asked]) -> Asked:
        """A request for a call."""
        body = await self._body(request)
        large = len(body) > LARGE

        def read() -> Asked:
            asked = form(load_body(body))
            asked.large = large
            asked.digests = digests(asked.said, asked.tools, asked.request)
            return asked

        return await self.caller.workers.run(attempt.turn, read) if large else read()

    async def _small(self, request: Request) -> dict[str, Any]:
        """A request of the side channel."""
        body = await self._body(request)
        if len(body) > LARGEST_SMALL:
            raise Refused(413, f"the body has more than {LARGEST_SMALL} bytes", "body_too_large")
        return load_body(body)

    async def chat(self, attempt: Attempt, request: Request) -> Response:
        asked = await self._read(attempt, request, lambda body: read_chat(body, self.limits))
        live = await self._started(attempt, asked, request)
        model = live.asked.model or self.model
        if live.asked.stream:
            await live.begin()
            return Events(chunks(live, model))
        return answer(completion(live.asked, await live.whole(), model, live.dialogue))

    async def responses(self, attempt: Attempt, request: Request) -> Response:
        asked = await self._read(attempt, request, lambda body: read_responses(body, self.limits, self._earlier(attempt, body)))
        live = await self._started(attempt, asked, request)
        model = live.asked.model or self.model
        if live.asked.stream:
            await live.begin()
            return Events(events(live, model), named=True)
        await live.whole()
        return answer(response(live, model))

    def _earlier(self, attempt: Attempt, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The conversation of the response that a request names."""
        name = body.get("previous_response_id")
        if name is None:
            return []
        call = attempt.answered.get(name) if isinstance(name, str) else None
        if call is None:
            raise Refused(404, "previous_response_id names no response of this attempt", param="previous_response_id")
        return [*call.messages, call.message]

    async def _started(self, attempt: Attempt, asked: Asked, request: Request) -> Live:
        """A call that runs."""
        if self.running >= self.limits.waiting:
            raise Refused(503, "too many calls are waiting", "overloaded", "server_error")
        self.running += 1
        live = Live(self.caller, attempt, asked, self._ended)
        anchor = request.headers.get(ANCHOR, "")[:LONGEST_ANCHOR] or None
        await live.start(anchor, partial(_disconnected, request))
        return live

    def _ended(self) -> None:
        self.running -= 1

    async def models(self, attempt: Attempt, request: Request) -> Response:
        _, one, name = request.url.path.partition("/v1/models/")
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        if one and name != self.model:
            raise Refused(404, "there is no such model: see /models", "model_not_found")
        return answer(model if one else {"object": "list", "data": [model]})

    async def reward(self, attempt: Attempt, request: Request) -> Response:
        """The side channel of a program: a reward for the last call, or for the one with a given id."""
        self._recorded(attempt)
        body = await self._small(request)
        value, call = number(body.get("value"), "value", -1e6, 1e6), body.get("call")
        recorder, limits = attempt.recorder, attempt.recorder.limits
        if value is None:
            raise Refused(400, "value takes a number from -1e+06 to 1e+06", param="value")
        if call is not None and not isinstance(call, str):
            raise Refused(400, f"call takes the id of a response, a text, not {shown(call)}", param="call")
        note = text(body.get("note"))[:LONGEST_NOTE]
        if recorder.rewards >= limits.rewards or recorder.note_bytes + len(note.encode()) > limits.note_bytes:
            most = f"{limits.rewards} rewards, and {limits.note_bytes} bytes of notes"
            raise Refused(403, f"this attempt may post {most}", "reward_limit", LIMIT)
        if not recorder.add_reward(value, note, call):
            ids = [one.id for one in recorder.calls]
            calls_so_far = f"the last of its {len(ids)} calls are {', '.join(ids[-SHOWN_CALLS:])}" if ids else "it has made no call yet"
            raise Refused(400, f"call names no call of this attempt: {shown(call)}; {calls_so_far}", "unknown_call", param="call")
        return answer({"reward": recorder.reward})

    def _recorded(self, attempt: Attempt) -> None:
        if not attempt.record:
            raise Refused(404, "nothing is trained here: rewards and anchors have no meaning", "not_found")

    async def anchor(self, attempt: Attempt, request: Request) -> Response:
        """The side channel of a program: the anchor of its next call."""
        self._recorded(attempt)
        key = (await self._small(request)).get("key")
        if not isinstance(key, str) or not key:
            raise Refused(400, "key takes a text", param="key")
        attempt.recorder.next_anchor = key[:LONGEST_ANCHOR]
        return answer({"anchor": attempt.recorder.next_anchor})


def answer(body: dict[str, Any], status: int = 200) -> Response:
    """A body as JSON. The rest of a body that is too large is read and dropped, or its client would see a broken connection instead."""
    headers = {"connection": "close"} if status == 408 else None
    return Response(written(body), status, headers, "application/json")


async def _disconnected(request: Request) -> None:
    """Returns when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
