"""The pipe to an MCP server that is a child process.

The SDK's own stdio transport starts the server in a new session, so the server would outlive a worker process that is killed, and it
copies a long message once per chunk. This one leaves the server in the worker's process group, reads any message in linear time, and gives
up on a message beyond `LONGEST_MESSAGE`. It yields the two streams that the SDK's `ClientSession` takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator
from typing import Any

from turnwise.envs import guard
from turnwise.envs.tools.settings import ServerSettings

LONGEST_MESSAGE = 128 * 2**20
CHUNK = 2**18
PATIENCE = 1.0  # seconds for a server to end by itself, and again after it was asked to


class Pipe:
    """A running server. `ended` is set when it has closed its output, `overflowed` when it sent a message that is too long."""

    def __init__(self, settings: ServerSettings):
        self._settings = settings
        self.ended, self.overflowed = asyncio.Event(), asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Starts the server; yields the stream of its messages and the one of messages to it; ends it."""
        import anyio
        from mcp.shared.message import SessionMessage

        own = self._settings
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *own.words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=own.environment(), cwd=own.cwd
        )
        if own.memory_mb is not None:
            limit = own.memory_mb * 2**20
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (limit, limit))
        arriving, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_server, leaving = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [asyncio.ensure_future(self._read(self.process, arriving)), asyncio.ensure_future(self._write(self.process, leaving))]
        try:
            yield from_server, to_server
        finally:
            await self._end(self.process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (arriving, from_server, to_server, leaving):
                stream.close()

    async def _read(self, process: asyncio.subprocess.Process, arriving: Any) -> None:
        """Pass on every line as a message; what is not a message is left out."""
        import mcp_types
        from mcp.shared.message import SessionMessage

        assert process.stdout is not None
        parts: list[bytes] = []
        length = 0
        async with arriving:
            while chunk := await process.stdout.read(CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    whole = b"".join([*parts, line])
                    parts, length = [], 0
                    with contextlib.suppress(ValueError):
                        await arriving.send(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(whole, by_name=False)))
                length += len(rest)
                if length > LONGEST_MESSAGE:
                    self.overflowed.set()
                    return
                parts.append(rest)
        self.ended.set()

    async def _write(self, process: asyncio.subprocess.Process, leaving: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            async for message in leaving:
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Close its input, then ask it to end, then end it with all that it has started."""
        started = guard.descendants(process.pid)
        if process.stdin is not None:
            process.stdin.close()
        for ask in (None, signal.SIGTERM, signal.SIGKILL):
            if ask is not None:
                started |= guard.descendants(process.pid)
                guard.send(ask, {process.pid, *started})
            until = asyncio.get_running_loop().time() + PATIENCE
            while process.returncode is None and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.01)  # not process.wait(), which also waits for a child that holds the pipe open
            if process.returncode is not None:
                break
        guard.send(signal.SIGKILL, started)

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        if self.process is not None and self.process.returncode is None:
            guard.end_tree(self.process.pid)
