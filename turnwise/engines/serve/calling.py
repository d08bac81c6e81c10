"""One call from request to answer: limits, the prompt, sampling, reading the response, the record."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from turnwise.agent.dialogue import Dialogue, Said
from turnwise.agent.tool_calls import OPENING, CallsRead, ToolCall, read_calls
from turnwise.engines.base import COLDEST, Finish, Response, Sampling
from turnwise.engines.serve.asked import Asked, Refused
from turnwise.engines.serve.calls import Call, Conversations, Node, Recorder, extended, seed_of
from turnwise.engines.serve.driver import Driver, Ticket
from turnwise.engines.serve.schema import TooCostly, mismatch
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive
from turnwise.util.terminal import Once

log = logging.getLogger("turnwise.endpoint")
LONG, MANY = 20_000, 100  # characters and messages from which on what is new in a conversation is tokenised in another thread
KEPT = 2000  # calls whose conversations an endpoint for use remembers
LIMIT = "limit"


@dataclass(eq=False)
class Attempt:
    """An open attempt: what is recorded, the conversations so far, and what the engine keeps for them. `token` is its part of the URL."""

    recorder: Recorder
    token: str
    record: bool = True
    conversations: Conversations = field(default_factory=Conversations)
    sequences: set[int] = field(default_factory=set)
    tickets: set[Ticket] = field(default_factory=set)
    made: int = 0
    answered: OrderedDict[str, Call] = field(default_factory=OrderedDict)  # of the Responses form, by id
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # to use a worker thread


@dataclass(eq=False)
class Running:
    """A choice of a call that is being sampled."""

    call: Call
    ticket: Ticket
    line: str
    digest: bytes
    answer: asyncio.Future[Response]
    forced: str = ""


@dataclass(eq=False)
class Caller:
    """Makes calls for all attempts. `sampling` is the run's. With `honour` the client's temperature, top-p, top-k, min-p and seed count;
    otherwise only what does not change the distribution of a token does: max tokens, stop strings and n."""

    dialogue: Dialogue
    driver: Driver
    sampling: Sampling
    workers: Workers
    honour: bool = False
    say: Once = field(default_factory=lambda: Once(log.warning))

    # Before sampling.

    def admit(self, attempt: Attempt, asked: Asked) -> None:
        """Reject a call beyond a limit of its attempt."""
        recorder, limits = attempt.recorder, attempt.recorder.limits
        if asked.n > limits.choices:
            raise Refused(400, f"n = {asked.n} is more than the {limits.choices} choices that are given", param="n")
        if attempt.record and attempt.made + asked.n > limits.calls:
            recorder.stop = recorder.stop or f"more than {limits.calls} calls"
            raise Refused(403, f"this attempt may make {limits.calls} calls, and has made them", "call_limit", LIMIT)
        if limits.tokens and recorder.sampled >= limits.tokens:
            recorder.stop = recorder.stop or f"more than {limits.tokens} tokens"
            raise Refused(403, f"this attempt may sample {limits.tokens} tokens, and has sampled them", "token_limit", LIMIT)
        if recorder.running + asked.n > limits.at_once:
            raise Refused(429, f"this attempt may run {limits.at_once} calls at a time", "too_many_calls", LIMIT)

    async def start(
        self, attempt: Attempt, asked: Asked, anchor: str | None = None, tokens: Callable[[int, int], None] | None = None
    ) -> list[Running]:
        """Submit a call, one request per choice. `tokens` gets the number of the choice and each token as it is drawn."""
        self.admit(attempt, asked)
        calls = self._arrived(attempt, asked, anchor)
        try:
            continued, covered = attempt.conversations.find(asked.digests, asked.said)
            forced = self._forced(asked)
            if continued is not None:
                share(asked.messages, continued.messages)
            prompt, parent = await self._prompt(attempt, asked, continued, covered, forced)
            sampling = self._sampling(attempt.recorder, asked)
            running = []
            for choice, call in enumerate(calls):
                call.prompt_ids, call.forced = prompt, len(self.dialogue.encode(forced)) if forced else 0
                one = self._place(attempt, call, parent, asked.digests[-1], choice)
                one.forced, one.ticket.sampling = forced, sampling
                if self.honour and asked.seed is not None:
                    call.seed = one.ticket.seed = derive(asked.seed, choice)
                if tokens is not None:
                    one.ticket.token = partial(tokens, choice)
                running.append(one)
            self._submit(attempt, running)
            return running
        except BaseException:
            attempt.recorder.running -= len(calls)
            for call in calls:
                call.stop_reason = call.stop_reason or Finish.REFUSED.value
            raise

    def _arrived(self, attempt: Attempt, asked: Asked, anchor: str | None) -> list[Call]:
        """The calls of a request, recorded in the order in which requests arrive."""
        recorder = attempt.recorder
        if anchor is None:
            anchor, recorder.next_anchor = recorder.next_anchor, None
        calls = [Call(attempt.made + choice, None, asked.messages, asked.tools, []) for choice in range(asked.n)]
        name = f"{'resp' if asked.form == 'responses' else 'chatcmpl'}_{uuid.uuid4().hex}"
        for choice, call in enumerate(calls):
            call.anchor, call.form, call.id = anchor, asked.form, f"{name}-{choice}" if choice else name
        attempt.made += len(calls)
        recorder.running += len(calls)
        if attempt.record:
            recorder.calls += calls
        return calls

    async def _prompt(
        self, attempt: Attempt, asked: Asked, parent: Node | None, covered: int, forced: str
    ) -> tuple[list[int], Node | None]:
        """The prompt's ids, and the call that they continue."""

        def build() -> tuple[list[int], Node | None]:
            if parent is not None:
                try:
                    bridge = self.dialogue.bridge_ids(parent.response_ids, asked.said[covered:])
                    return [*parent.prompt_ids, *parent.response_ids, *bridge, *end], parent
                except TurnwiseError as error:
                    self.say(f"a conversation was not continued, but sent anew: {error}")
            return [*self.dialogue.opening_ids(asked.said, asked.tools, asked.request), *end], None

        end = self.dialogue.encode(forced) if forced else []
        try:
            fresh = asked.said[covered:]
            size = sum(len(one.content) + sum(len(call.arguments) for call in one.calls) for one in fresh)
            large = size > LONG or len(fresh) > MANY or (parent is None and asked.large)
            return await self.workers.run(attempt.turn, build) if large else build()
        except TurnwiseError as error:
            raise Refused(400, str(error)) from None

    def _forced(self, asked: Asked) -> str:
        """The beginning of the response that is given to the model if it must call a tool."""
        if not asked.tools or not self.dialogue.writes_tags:
            return ""
        if asked.tool_choice == "required":
            return f"{OPENING}\n"
        if asked.tool_choice.startswith("="):
            return f'{OPENING}\n{{"name": {json.dumps(asked.tool_choice[1:], ensure_ascii=False)}, "arguments": '
        return ""

    def _sampling(self, recorder: Recorder, asked: Asked) -> Sampling:
        base = self.sampling
        max_tokens = min(base.max_tokens, asked.max_tokens or base.max_tokens)
        if recorder.limits.tokens:
            max_tokens = max(1, min(max_tokens, recorder.limits.tokens - recorder.sampled))
        sampling = replace(base, max_tokens=max_tokens, stop=tuple(dict.fromkeys((*base.stop, *asked.stop))))
        if not self.honour:
            if {asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed} != {None}:
                self.say("a program asks for a temperature, top-p, top-k, min-p or seed of its own: in training the recipe's count")
            return sampling
        if asked.temperature is not None:
            sampling = replace(sampling, temperature=0.0 if asked.temperature < COLDEST else asked.temperature)
        return replace(
            sampling,
            top_p=sampling.top_p if asked.top_p is None else max(asked.top_p, 1e-6),
            top_k=sampling.top_k if asked.top_k is None else max(asked.top_k, 0),
            min_p=sampling.min_p if asked.min_p is None else asked.min_p,
        )

    def _place(self, attempt: Attempt, call: Call, parent: Node | None, digest: bytes, choice: int) -> Running:
        """The position of a call among the conversations of its attempt."""
        line = attempt.conversations.line(parent, digest, choice)
        sequence = next(self.driver.sequences) if parent is None or parent.children else parent.sequence
        if parent is not None:
            call.parent, call.depth = parent.number, parent.depth + 1
            parent.children += 1
        call.seed = seed_of(attempt.recorder.seed, line, call.depth)
        if attempt.record:
            attempt.sequences.add(sequence)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()

        def settle(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        def done(response: Response) -> None:
            with suppress(RuntimeError):  # the endpoint's loop may have ended
                loop.call_soon_threadsafe(settle, response)

        return Running(call, Ticket(call.prompt_ids, self.sampling, call.seed, sequence, done), line, digest, answer)

    def _submit(self, attempt: Attempt, running: list[Running]) -> None:
        try:
            for one in running:
                attempt.tickets.add(one.ticket)
                self.driver.submit(one.ticket)
        except TurnwiseError as error:
            for one in running:
                one.ticket.abandoned = True
            raise Refused(503, str(error), "engine_stopped", "server_error") from None

    # After sampling.

    def finish(self, attempt: Attempt, asked: Asked, running: Running, response: Response) -> Call:
        """Record a response. Raises `Refused` if there is none."""
        call, recorder = running.call, attempt.recorder
        attempt.tickets.discard(running.ticket)
        recorder.running -= 1
        if recorder.closed:
            raise Refused(401, "this attempt is over", "invalid_api_key", "authentication_error")
        call.stop_reason = response.finish.value
        if response.finish is Finish.REFUSED:
            raise Refused(400, response.message, "context_length_exceeded", param="messages")
        if response.finish is Finish.FAULT:
            recorder.faults.append(response.message)
            raise Refused(503, "the engine could not answer this call", "engine_fault", "server_error")
        call.response_ids, call.logprobs, call.version = response.token_ids, response.logprobs, response.version
        call.reports, call.delivered = response.reports, not running.ticket.abandoned
        recorder.sampled += len(call.response_ids)
        recorder.last = call.number if attempt.record else None
        text = response.text if response.text is not None else self.dialogue.chat.decode(call.response_ids)
        call.text = running.forced + text
        read = self.read(asked, call.text)
        call.problem = read.problem
        calls = tuple(replace(one, id=call_id(call, index)) for index, one in enumerate(read.calls))
        call.message = assistant_message(read.content, calls)
        said = Said("assistant", read.content, calls)
        node = Node(call.number, call.prompt_ids, call.response_ids, running.ticket.sequence, call.depth, running.line)
        node.messages = [*call.messages, call.message]
        gone = attempt.conversations.add(extended(running.digest, said), node)
        if asked.form == "responses":
            attempt.answered[call.id] = call
            if not attempt.record and len(attempt.answered) > KEPT:
                attempt.answered.popitem(last=False)
        if gone:
            self.driver.release([one.sequence for one in gone if not one.children])
        return call

    def read(self, asked: Asked, text: str) -> CallsRead:
        """A response as content and calls."""
        for stop in asked.stop:
            text = text.partition(stop)[0]
        return read_calls(text, asked.names)

    async def check(self, attempt: Attempt, asked: Asked, call: Call) -> None:
        """Note a response that is not the JSON that was asked for."""
        if call.message.get("tool_calls") or call.problem or not (asked.schema is not None or asked.json_only):
            return
        schema = asked.schema if asked.schema is not None else {"type": "object"}
        try:
            call.problem = await self.workers.run(attempt.turn, partial(mismatch, call.message["content"], schema))
        except (TooCostly, Refused) as error:
            self.say(f"a response was not checked against its schema: {error}")


def share(messages: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> None:
    """Keep one copy of what a conversation repeats: otherwise its memory would grow with the square of its length."""
    for index, (one, shared) in enumerate(zip(messages, earlier, strict=False)):
        if one == shared:
            messages[index] = shared


def call_id(call: Call, index: int) -> str:
    """The id of a tool call: nine letters, which every chat template accepts, and the same if the call is repeated."""
    return f"{derive(call.seed, 'tool call', call.depth, index):016x}"[-9:]


def assistant_message(content: str, calls: tuple[ToolCall, ...]) -> dict[str, Any]:
    """The message as chat completions return it."""
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return message


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
