"""A running call: what is sampled for it, whether the client is still connected, and the record at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from turnwise.agent.dialogue import Dialogue
from turnwise.engines.serve.asked import Asked, Refused
from turnwise.engines.serve.calling import Attempt, Caller, Running
from turnwise.engines.serve.calls import Call
from turnwise.engines.serve.growing import Growing

WATCH_SECONDS = 0.02  # a call that takes longer is watched: if its client goes, sampling ends


@dataclass(eq=False)
class Live:
    """All choices of one call. `ended` is called once, when nothing runs any more. `refused` is set instead of raised once a stream has
    begun."""

    caller: Caller
    attempt: Attempt
    asked: Asked
    ended: Callable[[], None]
    refused: Refused | None = None
    _running: list[Running] = field(default_factory=list)
    _queue: asyncio.Queue[tuple[int, int] | None] = field(default_factory=asyncio.Queue)
    _gone: asyncio.Future[None] | None = None
    _look: asyncio.TimerHandle | None = None
    _first: tuple[int, int] | None = None
    _growing: list[Growing] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [one.call for one in self._running]

    @property
    def dialogue(self) -> Dialogue:
        return self.caller.dialogue

    async def start(self, anchor: str | None, gone: Callable[[], Awaitable[None]]) -> None:
        """Submit the call. `gone` returns when the client has disconnected; sampling for it then ends."""
        loop = asyncio.get_running_loop()

        def heard(choice: int, token: int) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, (choice, token))

        try:
            self._running = await self.caller.start(self.attempt, self.asked, anchor, heard if self.asked.stream else None)
        except BaseException:
            self.ended()
            raise
        self._look = loop.call_later(WATCH_SECONDS, self._begin_watch, gone)

    def _begin_watch(self, gone: Callable[[], Awaitable[None]]) -> None:
        self._gone = asyncio.ensure_future(self._watch(gone))

    async def _watch(self, gone: Callable[[], Awaitable[None]]) -> None:
        await gone()
        for one in self._running:
            one.ticket.abandoned = True

    async def whole(self) -> list[Call]:
        """Wait for all choices and record them."""
        try:
            responses = [await one.answer for one in self._running]
            refused: Refused | None = None
            for one, response in zip(self._running, responses, strict=True):
                try:
                    await self.caller.check(self.attempt, self.asked, self.caller.finish(self.attempt, self.asked, one, response))
                except Refused as error:
                    refused = error
            if refused is not None:
                raise refused
            return self.calls
        finally:
            if self._look is not None:
                self._look.cancel()
            if self._gone is not None:
                self._gone.cancel()
            self.ended()

    async def begin(self) -> None:
        """Wait for a stream's first token. A call that is rejected at once raises here, while the answer can still be an error."""
        self._growing = [Growing(self.dialogue.chat, self.asked, one.forced) for one in self._running]
        answers: asyncio.Future[Any] = asyncio.gather(*(one.answer for one in self._running))
        answers.add_done_callback(lambda _: self._queue.put_nowait(None))
        self._first = await self._queue.get()
        if self._first is None:
            await self.whole()

    async def texts(self) -> AsyncIterator[tuple[int, str]]:
        """Choices and the texts to send for them; at the end the call is recorded."""
        found = self._first
        begun = found is not None
        while found is not None:
            choice, token = found
            if text := self._growing[choice].push(token):
                yield choice, text
            found = await self._queue.get()
        if begun:
            try:
                await self.whole()
            except Refused as error:
                self.refused = error

    def rest(self, choice: int) -> str:
        """What a stream has not sent yet of a choice's content."""
        return self._growing[choice].rest(self.calls[choice].message.get("content") or "")
