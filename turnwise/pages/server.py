"""The pages over HTTP, only for the person at this machine.

It listens only on the loopback address. A web page elsewhere could still make this browser send a request here, or point its own host
name at 127.0.0.1. So the Host header must name this machine (any port: an SSH tunnel may end at another), and a request that another site
caused gets no answers and no scripts. Only GET and HEAD exist, answers are looked up by name, and the pages may load nothing from
elsewhere.
"""

from __future__ import annotations

import re
import webbrowser
from email.message import Message
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl

from turnwise.pages.answers import Answers, as_json
from turnwise.pages.run_list import RunList
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import say

ADDRESS = "127.0.0.1"
PORT = 7878
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
    "tree.js",
    "findings.js",
    "compare.js",
    "main.js",
)
SCRIPT, STYLE, PAGE = "pages.js", "style.css", "page.html"
KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "html": "text/html; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
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
        case ["", "arena"]:
            return HTTPStatus.OK, KINDS["html"], answers.arena().encode()
        case ["", "picture"]:
            return HTTPStatus.OK, "image/png", answers.picture(words)
    return HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n"


class Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "turnwise", ""
    disable_nagle_algorithm = True  # head and body are two packets
    timeout = 60.0  # seconds that a client may take for a request, or for taking an answer

    def do_GET(self) -> None:
        try:
            status, kind, body = answer(self.server.answers, self.path, self.headers)
        except TurnwiseError as error:
            status, kind, body = HTTPStatus.NOT_FOUND, "application/json", as_json({"error": str(error)}).encode()
        except Exception as error:  # the page shows it; the server must continue
            words = f"{type(error).__name__}: {error}"[:500]
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", as_json({"error": words}).encode()
        if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0").strip() != "0":
            self.close_connection = True  # the request's body is not read here
        self._send(status, kind, body, REPORT_POLICY if self.path == "/arena" else POLICY)  # the report has no script

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is not a request, or asks for anything but GET and HEAD."""
        self._send(HTTPStatus(code), "text/plain", f"{message or HTTPStatus(code).phrase}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, policy: str = POLICY) -> None:
        self.close_connection = self.close_connection or status is not HTTPStatus.OK
        self.send_response(status)
        self.send_header("Content-Security-Policy", policy)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None: ...


class Server(ThreadingMixIn, TCPServer):
    """Serves the runs of a folder, each connection in a thread. Port 0 takes a free one."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 1024  # callers that the system keeps waiting until they are served

    def __init__(self, runs: RunList, port: int = PORT):
        self.answers = Answers(runs)
        super().__init__((ADDRESS, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is not an error; errors of answers are sent to the page."""


def open_server(runs: RunList, port: int | None) -> Server:
    """On the given port, or on the usual one, or if that is taken on a free one."""
    for choice in (port,) if port is not None else (PORT, 0):
        try:
            return Server(runs, choice)
        except OSError as error:
            problem = error
    raise TurnwiseError(f"cannot listen on port {port}: {problem.strerror}. Take another with --port, or leave it out for a free one")


def serve(runs: RunList, port: int | None, browser: bool = True) -> None:
    """Say where the pages are, open a browser if one is wanted, and serve until Ctrl-C."""
    server = open_server(runs, port)
    count = len(runs.folders())
    say(f"{count} run{'s' if count != 1 else ''} at {server.url}   (Ctrl-C ends)")
    if browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
