"""MCP servers as tools: started, limited and ended here, through the official SDK.

The SDK is asynchronous and environments are not, so one thread per process runs its event loop; a call waits for it, no longer than its
time limit. A server that does not answer is asked for a sign of life and started again if there is none; one that has died is started
again; a message that is too long ends it. In each case the model gets a message and the attempt goes on.

One server serves all attempts of a process if it keeps nothing between calls (`ServerSettings.reuse`); otherwise every attempt has its own,
started at the first call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as WaitedTooLong
from functools import cache
from threading import Thread
from typing import Any, TypeVar

from turnwise.envs.tools.schemas import Tool
from turnwise.envs.tools.settings import ServerSettings
from turnwise.envs.tools.transport import LONGEST_MESSAGE, Pipe
from turnwise.util.errors import TurnwiseError, install_command

START_SECONDS = 30.0
SIGN_OF_LIFE = 1.0  # seconds for the answer to a ping
GRACE = 5.0  # what the event loop may take on top of a time limit
PAGES = 100  # of tools that are read
T = TypeVar("T")


class Gone(TurnwiseError):
    """The server ended, hangs, or sent too much; the text is for the model."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True, name="mcp").start()
    return loop


def _run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(seconds)
    except WaitedTooLong:
        future.cancel()
        raise


class Connection:
    """A session with one server. `stateless`: all its tools only read."""

    def __init__(self, settings: ServerSettings, start_seconds: float = START_SECONDS):
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise TurnwiseError(f"MCP servers need the package mcp: {install_command('mcp')}") from None
        self.settings = settings
        self.tools: list[Tool] = []
        self.stateless = False
        self._pipe: Pipe | None = None
        self._session: Any = None
        try:
            _run(self._start(start_seconds), start_seconds + GRACE)
        except (Exception, WaitedTooLong) as error:
            self.close()
            why = f"it did not answer within {start_seconds:g} s" if isinstance(error, TimeoutError) else _reason(error)
            raise TurnwiseError(f"the MCP server {settings.name} cannot be used: {why}") from None

    async def _start(self, seconds: float) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._life = asyncio.ensure_future(self._live(ready))

        def over(life: asyncio.Future[None]) -> None:
            why = None if life.cancelled() else life.exception()
            if not ready.done():
                ready.set_exception(why or Gone("it ended"))

        self._life.add_done_callback(over)
        await asyncio.wait_for(asyncio.shield(ready), seconds)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """Everything between the start of a server and its end, in one task, as the SDK wants it."""
        from mcp import ClientSession

        async with contextlib.AsyncExitStack() as stack:
            streams = await stack.enter_async_context(self._transport())
            session = await stack.enter_async_context(ClientSession(streams[0], streams[1], logging_callback=_ignore))
            begun = _retrieved(asyncio.ensure_future(self._introduce(session)))
            await self._first_of(begun)
            self._session = session
            if not ready.done():
                ready.set_result(None)
            await self._ending.wait()
            self._session = None

    def _transport(self) -> Any:
        own = self.settings
        if own.command:
            self._pipe = Pipe(own)
            return self._pipe.streams()
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        return streamable_http_client(own.url, http_client=create_mcp_http_client(headers=own.http_headers()))

    async def _introduce(self, session: Any) -> None:
        await session.initialize()
        listed: list[Any] = []
        cursor = None
        for _ in range(PAGES):
            from mcp_types import PaginatedRequestParams

            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            listed += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        wanted = self.settings.tools
        kept = [tool for tool in listed if wanted is None or tool.name in wanted]
        if wanted is not None and (missing := set(wanted) - {tool.name for tool in kept}):
            raise TurnwiseError(f"it has no tool {min(missing)!r}; it has {', '.join(tool.name for tool in listed)}")
        self.tools = [Tool(tool.name, tool.description or "", _untitled(tool.input_schema)) for tool in kept]
        self.stateless = bool(kept) and all(tool.annotations is not None and tool.annotations.read_only_hint for tool in kept)

    async def _first_of(self, work: asyncio.Future[Any]) -> Any:
        """The result of some work with the server, or `Gone` if the server is gone before."""
        pipe = self._pipe
        events = () if pipe is None else (pipe.ended, pipe.overflowed)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait({work, *waits}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and pipe is not None:
                work.cancel()
                raise Gone(self._end_of_it())
            return work.result()
        finally:
            for wait in waits:
                wait.cancel()

    def _end_of_it(self) -> str:
        too_long = self._pipe is not None and self._pipe.overflowed.is_set()
        return f"its server sent more than {LONGEST_MESSAGE >> 20} MB at once" if too_long else "its server has ended"

    def call(self, name: str, arguments: Mapping[str, Any], timeout: float | None) -> str:
        """The result of a tool as text. `Gone` if the server has to be started again."""
        seconds = 365 * 86400.0 if timeout is None else timeout
        try:
            return _run(self._called(name, dict(arguments), seconds), seconds + SIGN_OF_LIFE + GRACE)
        except WaitedTooLong:
            raise Gone(f"it did not return within {seconds:g} s") from None

    async def _called(self, name: str, arguments: dict[str, Any], seconds: float) -> str:
        session = self._session
        if session is None:
            raise Gone("its server has ended")
        work = _retrieved(asyncio.ensure_future(session.call_tool(name, arguments)))
        try:
            return _shown(await asyncio.wait_for(self._first_of(work), seconds))
        except TimeoutError:
            work.cancel()
            try:
                await asyncio.wait_for(session.send_ping(), SIGN_OF_LIFE)
            except Exception:
                raise Gone(f"it did not return within {seconds:g} s") from None
            return f"Error: it did not return within {seconds:g} s and was given up."
        except Gone:
            raise
        except Exception as error:
            ended = self._life.done() or (self._pipe is not None and self._pipe.ended.is_set())
            if ended or "closed" in f"{type(error).__name__} {error}".lower():
                raise Gone(self._end_of_it()) from None
            return f"Error: {_reason(error)}"

    def kill(self) -> None:
        """End the server at once; nothing is waited for."""
        if self._pipe is not None:
            self._pipe.kill()
        self.close()

    def close(self) -> None:
        """End the session and the server, in the background of whatever comes next."""
        with contextlib.suppress(RuntimeError, AttributeError):  # at the end of the process, or before it was begun
            _loop().call_soon_threadsafe(self._ending.set)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended."""
        with contextlib.suppress(Exception, WaitedTooLong):
            _run(asyncio.wait_for(asyncio.shield(self._life), seconds), seconds + 1)


def _retrieved(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """The same work; its error is not printed if nobody waits for it any more."""
    work.add_done_callback(lambda done: None if done.cancelled() else (done.exception(), None)[1])
    return work


def _untitled(schema: Any) -> Any:
    """A schema without the titles that the SDK makes from names: they only cost tokens."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}


async def _ignore(params: Any) -> None:
    """What a server logs is not for the agent."""


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:500] if not isinstance(error, TurnwiseError) else str(error)


def _shown(result: Any) -> str:
    """What a model sees of a result: its texts; of anything else, what it is."""
    parts: list[str] = []
    for item in result.content:
        if item.type == "text":
            parts.append(item.text)
        elif item.type == "resource":
            parts.append(getattr(item.resource, "text", "") or f"[resource {item.resource.uri}]")
        else:
            parts.append(f"[{item.type}]")
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return f"Error: {text}" if result.is_error else text


class Servers:
    """The connections that all attempts of this process share, by their settings."""

    def __init__(self) -> None:
        self.shared: dict[ServerSettings, Connection] = {}

    def take(self, settings: ServerSettings) -> Connection:
        """A connection for an attempt: the shared one, or a new one."""
        if settings in self.shared:
            return self.shared[settings]
        made = Connection(settings)
        if settings.reuse == "always" or (settings.reuse == "auto" and made.stateless):
            self.shared[settings] = made
        return made

    def give_back(self, connection: Connection) -> None:
        """An attempt is over."""
        if self.shared.get(connection.settings) is not connection:
            connection.close()

    def drop(self, connection: Connection) -> None:
        """A connection is of no use any more."""
        if self.shared.get(connection.settings) is connection:
            del self.shared[connection.settings]
        connection.kill()

    def close(self) -> None:
        """End the shared servers, and wait for it."""
        ended, self.shared = list(self.shared.values()), {}
        for connection in ended:
            connection.close()
        for connection in ended:
            connection.wait(2.5)


servers = Servers()
atexit.register(servers.close)
