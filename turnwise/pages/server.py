"""The pages over HTTP, only for the person at this machine.

It listens only on the loopback address. A web page elsewhere could still make this browser send a request here, or point its own host
name at 127.0.0.1. So the Host header must name this machine (any port: an SSH tunnel may end at another), and a request that another site
caused gets no answers and no scripts. Only GET and HEAD exist, answers are looked up by name, and the pages may load nothing from
elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import Message
from functools import cache, partial
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from importlib.resources import files
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

from turnwise.pages.answers import Answers, as_json
from turnwise.pages.run_list import RunList
from turnwise.util.errors import TurnwiseError

ADDRESS = "127.0.0.1"
PORT = 7878
BACKLOG = 1024  # callers that the system keeps waiting until they are served
WORKERS = 8  # threads that make answers
MOST_CONNECTIONS = 400  # beyond this, those that were not used for `PATIENCE` seconds are closed
PATIENCE = 2.0
SLOW = 60.0  # seconds that a client may take for a request, or for taking an answer
LONGEST_HEAD = 1 << 16
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
SCRIPTS = (
    "base.js",
    "data.js",
    "charts.js",
    "bands.js",
    "runs.js",
    "overview.js",
    "attempts.js",
    "turns.js",
    "terminal.js",
    "calls.js",
    "compare.js",
    "main.js",
)
SCRIPT, STYLE, PAGE = "pages.js", "style.css", "page.html"
KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "html": "text/html; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@cache
def static(name: str) -> str:
    """A file of the pages."""
    return (files("turnwise.pages") / "static" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All scripts as one, in their order."""
    return "\n".join(static(name) for name in SCRIPTS)


def page() -> str:
    """The page, with its script and its style named."""
    head = f'<link rel="stylesheet" href="/static/{STYLE}">\n<script src="/static/{SCRIPT}" defer></script>'
    return static(PAGE).replace("<!-- head -->", head).replace("<!-- data -->", "")


def respond(answers: Answers, head: bytes) -> tuple[bool, bytes]:
    """Whether the connection stays open, and the whole answer to a request."""
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return False, packed(HTTPStatus.BAD_REQUEST, "text/plain", b"This is not a request.\n")
    method, target, version = words
    try:
        headers = parse_headers(BytesIO(rest))
    except HTTPException:
        return False, packed(HTTPStatus.BAD_REQUEST, "text/plain", b"This is not a request.\n")
    if method not in ("GET", "HEAD"):
        return False, packed(HTTPStatus.NOT_IMPLEMENTED, "text/plain", b"Only GET and HEAD exist here.\n")
    has_body = "Transfer-Encoding" in headers or headers.get("Content-Length", "0").strip() != "0"  # it is not read here
    stay = version == "HTTP/1.1" and not has_body and headers.get("Connection", "").lower() != "close"
    try:
        status, kind, body = answer(answers, target, headers)
    except TurnwiseError as error:
        status, kind, body = HTTPStatus.NOT_FOUND, "application/json", as_json({"error": str(error)}).encode()
    except Exception as error:  # the page shows it; the server must continue
        status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", as_json({"error": _short_words(error)}).encode()
    stay = stay and status is HTTPStatus.OK
    return stay, packed(status, kind, body, stay=stay, send_body=method != "HEAD")


def answer(answers: Answers, target: str, headers: Message) -> tuple[HTTPStatus, str, bytes]:
    """Status, content type and body of the answer."""
    if not HOST.fullmatch(", ".join(headers.get_all("Host", []))):
        return HTTPStatus.FORBIDDEN, "text/plain", b"This server answers only to 127.0.0.1 and localhost.\n"
    path, _, query = target.partition("?")
    if path != "/" and headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):  # the page itself holds nothing
        return HTTPStatus.FORBIDDEN, "text/plain", b"Another site asked for this.\n"
    words = dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
    match path.split("/"):
        case ["", ""]:
            return HTTPStatus.OK, KINDS["html"], page().encode()
        case ["", "static", name] if name in (SCRIPT, STYLE):
            body = script() if name == SCRIPT else static(STYLE)
            return HTTPStatus.OK, KINDS[name.rsplit(".", 1)[1]], body.encode()
        case ["", "api", name]:
            return HTTPStatus.OK, "application/json", as_json(answers(name, words)).encode()
        case ["", "picture"]:
            return HTTPStatus.OK, "image/png", answers.picture(words)
    return HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n"


def packed(status: HTTPStatus, kind: str, body: bytes, *, stay: bool = False, send_body: bool = True) -> bytes:
    """An answer as bytes."""
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Server: turnwise"]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}", f"Connection: {'keep-alive' if stay else 'close'}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body if send_body else b"")


def _short_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


class Server:
    """Serves the runs of a folder. Port 0 takes a free one.

    One thread holds all connections, so that a slow, silent or lost client takes no thread; a few other threads make the answers. The
    backlog is as long as a burst of requests can be.
    """

    def __init__(self, runs: RunList, port: int = PORT):
        self.answers = Answers(runs)
        self.socket = socket.create_server((ADDRESS, port), backlog=BACKLOG)
        self.server_address: tuple[str, int] = self.socket.getsockname()
        self.server_port = self.server_address[1]
        self._open: dict[StreamWriter, float | None] = {}  # since when a connection has waited for a request; None while it has one
        self._ended = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._asked_to_end = False

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def serve_forever(self) -> None:
        """Answer until `shutdown` is called from another thread, or Ctrl-C."""
        pool = ThreadPoolExecutor(WORKERS, "pages")
        try:
            asyncio.run(self._serve(pool))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._ended.set()

    def shutdown(self) -> None:
        """End `serve_forever`, and wait until it has ended."""
        with self._lock:
            self._asked_to_end = True
            self._end()
        self._ended.wait(SLOW)

    def server_close(self) -> None:
        self.socket.close()

    async def _serve(self, pool: ThreadPoolExecutor) -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._end = lambda: _quietly(loop.call_soon_threadsafe, end.set)
            if self._asked_to_end:
                return
        served = await asyncio.start_server(partial(self._connection, pool), sock=self.socket, limit=LONGEST_HEAD, backlog=BACKLOG)
        await end.wait()
        served.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _connection(self, pool: ThreadPoolExecutor, reader: StreamReader, writer: StreamWriter) -> None:
        """Requests of one connection, one after another."""
        self._make_room()
        try:
            while True:
                self._open[writer] = asyncio.get_running_loop().time()
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SLOW)
                self._open[writer] = None
                stay, answer = await asyncio.get_running_loop().run_in_executor(pool, respond, self.answers, head)
                writer.write(answer)
                await asyncio.wait_for(writer.drain(), SLOW)
                if not stay:
                    break
        except asyncio.LimitOverrunError:
            writer.write(packed(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "application/json", b'{"error":"this request is too long"}'))
        except (OSError, EOFError, asyncio.CancelledError, RuntimeError):
            pass  # a browser that went away, or is silent for long, is not an error; nor is the end of the server
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _make_room(self) -> None:
        """Idle connections are closed if there are many."""
        if len(self._open) < MOST_CONNECTIONS:
            return
        now = asyncio.get_running_loop().time()
        for writer in [one for one, since in self._open.items() if since is not None and now - since > PATIENCE]:
            writer.transport.abort()


def _quietly(call: Callable[..., Any], *given: Any) -> None:
    with suppress(RuntimeError):  # the loop has ended in the meantime
        call(*given)
