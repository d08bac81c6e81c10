"""A running call: what is sampled for it, whether the client is still connected, and the record at the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue
from turnwise.agent.tool_calls import OPENING
from turnwise.engines.serve.asked import Asked, Refused
from turnwise.engines.serve.calling import Attempt, Caller, Running
from turnwise.engines.serve.calls import Call
from turnwise.engines.stopping import HALF_CHARACTER

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
        drawn = self._first
        begun = drawn is not None
        while drawn is not None:
            choice, token = drawn
            if text := self._growing[choice].push(token):
                yield choice, text
            drawn = await self._queue.get()
        if begun:
            try:
                await self.whole()
            except Refused as error:
                self.refused = error

    def rest(self, choice: int) -> str:
        """What a stream has not sent yet of a choice's content."""
        return str(self.calls[choice].message.get("content") or "")[self._growing[choice].sent :]


BARE = ("{", "[", "`")  # an answer that begins like this may be a call without tags
THOUGHT_END = re.compile("</think>", re.IGNORECASE | re.ASCII)
WINDOW, KEPT = 32, 4  # tokens that are decoded together, and those that stay when the window moves
LONGEST = 512  # tokens that may be half a character


@dataclass(eq=False)
class Growing:
    """The text of one choice while it is sampled. `push` a token and get what may be sent; `sent` characters of it were. `text` is what it
    begins with, if it was begun for the model."""

    chat: Chat
    asked: Asked
    text: str = ""
    sent: int = 0
    _ids: list[int] = field(default_factory=list)
    _start: int = 0  # where the decoded window begins
    _known: str = ""  # the text of the window that is in `text` already
    _answer: int = 0  # where the text after a closed thought begins

    def __post_init__(self) -> None:
        self._calls = bool(self.asked.names)

    def push(self, token: int) -> str:
        if token in self.chat.stop_ids:
            return ""
        self._ids.append(token)
        if len(self._ids) - self._start > LONGEST:  # no whole character for very long: the rest comes at the end
            return ""
        window = self._decode(self._start)
        if window.endswith(HALF_CHARACTER) or not window.startswith(self._known):
            return ""
        self.text += window[len(self._known) :]
        self._known = window
        if len(self._ids) - self._start >= WINDOW:
            self._start = len(self._ids) - KEPT
            self._known = self._decode(self._start)
        end = self._safe()
        added = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return added

    def _safe(self) -> int:
        """The length of the text that can no longer change."""
        text, end = self.text, len(self.text)
        watched = list(self.asked.stop)
        if self._calls:
            watched.append(OPENING)
            if not self._answer and (closed := THOUGHT_END.search(text, max(0, self.sent - 8))):
                self._answer = closed.end()
            if text[self._answer : self._answer + 200].lstrip()[:1] in ("", *BARE):
                end = self._answer
        for one in watched:
            start = text.find(one, max(0, self.sent - len(one)))
            end = min(end, start if start >= 0 else len(text) - _overlap(text, one))
        return len(text[:end].rstrip()) if watched else end

    def _decode(self, start: int) -> str:
        return str(self.chat.tokenizer.decode(self._ids[start:], skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _overlap(text: str, word: str) -> int:
    """How many characters at the end of a text begin a word."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if word.startswith(text[len(text) - size :]):
            return size
    return 0
