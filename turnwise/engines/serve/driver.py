"""The one thread that owns the engine while an endpoint runs.

An engine is not thread-safe. Calls are put into a queue from any thread; this thread submits all waiting calls, takes a step, and returns
the finished ones, so that calls which arrive at different times are computed together. `paused` gives the engine to another thread, such
as the learner's between two batches: calls then wait. A rule that is asked after each token tells whether the caller is still there, and
gives a stream its tokens as they are drawn; engines that take no rules send a stream at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from turnwise.engines.base import Engine, Finish, Request, Response, Sampling
from turnwise.util.errors import TurnwiseError

FIRST_SEQUENCE = 1 << 40  # trajectories of a collector count from 0


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request. `done` is called once, with the response, in the engine's thread; `token` after each token."""

    prompt_ids: list[int]
    sampling: Sampling
    seed: int
    sequence: int
    done: Callable[[Response], None]
    token: Callable[[int], None] | None = None
    abandoned: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """A stop rule that needs no reports."""
        return ()

    def watch(self, tokenizer: Any) -> Callable[[int, Mapping[str, float]], bool]:
        return self._drawn

    def _drawn(self, token: int, reports: Mapping[str, float]) -> bool:
        if self.token is not None:
            self.token(token)
        return self.abandoned


@dataclass(eq=False)
class Driver:
    """Starts its thread with the first request. `fault` is the error that ended it, if there was one."""

    engine: Engine
    fault: BaseException | None = None
    _waiting: list[Ticket] = field(default_factory=list)
    _released: list[int] = field(default_factory=list)
    _flying: dict[int, Ticket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._pauses, self._busy, self._stopped = 0, False, False
        self._keys, self.sequences = count(), count(FIRST_SEQUENCE)  # of conversations, whose prefixes the engine may keep until `release`
        self._thread: threading.Thread | None = None

    def submit(self, ticket: Ticket) -> None:
        with self._changed:
            if self.fault is not None or self._stopped:
                raise TurnwiseError(f"the engine has stopped: {self.fault or 'the endpoint is shut down'}")
            self._waiting.append(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="turnwise-engine", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def release(self, sequences: list[int]) -> None:
        """These conversations are over."""
        with self._changed:
            self._released += sequences
            if self._thread is not None:
                self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[Engine]:
        """Inside, the engine belongs to the caller, and calls wait."""
        with self._changed:
            self._pauses += 1
            while self._busy:
                self._changed.wait()
        try:
            yield self.engine
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the thread. Calls that still run are answered with a fault. The engine is left as it is."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._fail("the endpoint was shut down")
        released, self._released = self._released, []
        for sequence in released if self.fault is None else ():
            self.engine.release(sequence)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._stopped and (self._pauses or not (self._waiting or self._released or self._flying)):
                    self._changed.wait()
                if self._stopped:
                    return
                self._busy = True
                waiting, self._waiting = self._waiting, []
                released, self._released = self._released, []
            try:
                self._step(waiting, released)
            except BaseException as error:
                with self._changed:
                    self.fault, self._busy = error, False
                    self._waiting += waiting
                    self._changed.notify_all()
                self._fail(f"the engine failed: {error}")
                return

    def _step(self, waiting: list[Ticket], released: list[int]) -> None:
        for sequence in released:
            self.engine.release(sequence)
        for ticket in waiting:
            if ticket.abandoned:
                ticket.done(Response(-1, finish=Finish.FAULT, message="the caller has gone"))
            else:
                key = next(self._keys)
                streamed, rules = ticket.token is not None, self.engine.stop_rules
                watched = ticket.sampling.rule is None and (rules == "cheap" or (rules == "costly" and streamed))
                sampling = replace(ticket.sampling, rule=ticket) if watched else ticket.sampling
                request = Request(key, ticket.prompt_ids, sampling, ticket.seed, ticket.sequence)
                self.engine.submit([request])
                self._flying[key] = ticket
        if not self._flying:
            return
        for response in self.engine.poll(wait=False):
            if (answered := self._flying.pop(response.key, None)) is not None:
                answered.done(response)

    def _fail(self, message: str) -> None:
        with self._changed:
            left, self._waiting = [*self._flying.values(), *self._waiting], []
            self._flying = {}
        for ticket in left:
            ticket.done(Response(-1, finish=Finish.FAULT, message=message))
