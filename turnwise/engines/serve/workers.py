"""Threads for the expensive part of a request, so that the event loop stays free for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from turnwise.engines.serve.asked import Refused

T = TypeVar("T")
THREADS = 4


@dataclass(eq=False)
class Workers:
    """`seconds` is the limit of one request. A thread cannot be interrupted: if the time is over, its result is dropped."""

    seconds: float
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "turnwise-request"))

    async def run(self, turn: asyncio.Lock, work: Callable[[], T]) -> T:
        """Run this in a thread. `turn` is the attempt's: it has one thread at a time, also when it no longer waits for the result."""
        try:
            async with asyncio.timeout(self.seconds):
                await turn.acquire()
                try:
                    result = asyncio.get_running_loop().run_in_executor(self._pool, work)
                except RuntimeError:
                    turn.release()
                    raise Refused(503, "the endpoint is shut down", "engine_stopped", "server_error") from None
                result.add_done_callback(lambda _: turn.release())
                return await asyncio.shield(result)
        except TimeoutError:
            message = f"this request could not be read and tokenised within {self.seconds:g} s: send less at a time"
            raise Refused(503, message, "timeout", "server_error") from None

    def stop(self) -> None:
        """Start nothing new. What runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
