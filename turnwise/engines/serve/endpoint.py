"""The endpoint: many attempts over one engine, served from a background thread."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue
from turnwise.engines.base import Engine, Sampling
from turnwise.engines.serve.calling import KEPT, Attempt, Caller, Workers, log
from turnwise.engines.serve.calls import Conversations, Limits, Recorder
from turnwise.engines.serve.driver import Driver
from turnwise.util.errors import TurnwiseError, install_command
from turnwise.util.terminal import Once

if TYPE_CHECKING:
    from turnwise.engines.serve.server import Server

T = TypeVar("T")
START_SECONDS = 30.0
CALL_SECONDS = 60.0  # what the event loop does for one call takes microseconds


@dataclass(frozen=True, slots=True)
class Opened:
    """What a program needs: OPENAI_BASE_URL and OPENAI_API_KEY."""

    base_url: str
    key: str


class Endpoint:
    """Serves `engine` in the form of OpenAI's chat completions. `chat` has the model's tokenizer and template; `sampling` is the run's.

    Every attempt has its own base URL and key: `open` it, let the program run, `close` it and take what was recorded. Inside
    `paused` the engine belongs to the caller, for an update and `publish`; calls wait. `honour` lets clients choose the temperature and the
    like, for use after training. `say` takes notices. Methods may be called from any thread except the endpoint's."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        sampling: Sampling,
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        honour: bool = False,
        model: str = "turnwise",
        say: Once | None = None,
    ):
        self.limits = limits or Limits()
        self.driver = Driver(engine)
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._workers = Workers(self.limits.prepare_seconds)
        caller = Caller(Dialogue(chat), self.driver, sampling, self._workers, honour, say or Once(log.warning))
        try:
            from turnwise.engines.serve.app import Service
        except ImportError as error:
            self._socket.close()
            raise TurnwiseError(f"the endpoint needs a web server ({error}): {install_command('serve')}") from error
        self._service = Service(caller, self.limits, model)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="turnwise-endpoint", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS) or self._fault is not None:
            raise TurnwiseError(f"the endpoint did not start: {self._fault or 'no answer'}")

    @property
    def url(self) -> str:
        """Where the endpoint listens."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def open(self, attempt: str, *, seed: int = 0, limits: Limits | None = None) -> Opened:
        """Begin an attempt. `seed` is that of its policy: the same calls then get the same responses."""

        async def made() -> Opened:
            if any(one.recorder.attempt == attempt for one in self._service.attempts.values()):
                raise TurnwiseError(f"endpoint: the attempt {attempt!r} is already open")
            recorder = Recorder(attempt, secrets.token_urlsafe(32), seed, limits or self.limits)
            token = secrets.token_urlsafe(16)
            self._service.attempts[token] = Attempt(recorder, token)
            return Opened(f"{self.url}/a/{token}/v1", recorder.key)

        return self._call(made)

    def open_alone(self, key: str) -> Opened:
        """Serve at /v1 with one key, without recording: for use after training."""

        async def made() -> Opened:
            recorder = Recorder("alone", key, secrets.randbits(62), self.limits)
            self._service.alone = Attempt(recorder, "", record=False, conversations=Conversations(KEPT))
            return Opened(f"{self.url}/v1", key)

        return self._call(made)

    def recorder(self, attempt: str) -> Recorder:
        """What is recorded of an open attempt so far."""
        return self._find(attempt).recorder

    def close(self, attempt: str) -> Recorder:
        """End an attempt: its URL and key become invalid, and responses that are still being sampled for it are not recorded."""

        async def ended() -> Recorder:
            found = self._find(attempt)
            del self._service.attempts[found.token]
            found.recorder.closed = True
            for ticket in found.tickets:
                ticket.abandoned = True
            self.driver.release(sorted(found.sequences))
            return found.recorder

        return self._call(ended)

    def paused(self) -> AbstractContextManager[Engine]:
        """Inside, the engine belongs to the caller, and calls wait."""
        return self.driver.paused()

    def check(self) -> None:
        """Raise the error that stopped the engine, if there is one."""
        if self.driver.fault is not None:
            raise TurnwiseError(f"the engine behind the endpoint failed: {self.driver.fault}") from self.driver.fault

    def shutdown(self) -> None:
        """Stop serving. The engine is left as it is."""
        self.driver.stop()
        if self._loop is not None and self._server is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it ends by itself just now
                self._loop.call_soon_threadsafe(self._server.end)
        self._workers.stop()
        self._thread.join(CALL_SECONDS)
        if self._thread.is_alive():
            log.warning("the endpoint's event loop did not end within %g s, and is left behind", CALL_SECONDS)
        self._socket.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _find(self, attempt: str) -> Attempt:
        for found in list(self._service.attempts.values()):
            if found.recorder.attempt == attempt:
                return found
        raise TurnwiseError(f"endpoint: there is no open attempt {attempt!r}")

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something in the endpoint's thread, where all state is changed."""
        if self._loop is None or not self._thread.is_alive():
            raise TurnwiseError("the endpoint is shut down")
        result = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return result.result(CALL_SECONDS)
        except TimeoutError:
            result.cancel()
            raise TurnwiseError(f"the endpoint's event loop did not answer within {CALL_SECONDS:g} s: something blocks it") from None

    def _serve(self) -> None:
        try:
            from turnwise.engines.serve.server import new_loop, serve

            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(serve(self._service, self._socket, self.limits, self._started))
        except BaseException as error:
            self._fault = error
        finally:
            self._ready.set()

    def _started(self, server: Server) -> None:
        self._loop, self._server = asyncio.get_running_loop(), server
        self._ready.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio lets small answers wait
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except (OSError, OverflowError) as error:
        with suppress(OSError):
            made.close()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise TurnwiseError(f"cannot listen on {host} port {port}: {why}. Take another port, or 0 for a free one") from None
    return made
