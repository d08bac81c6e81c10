"""The pages over HTTP, for the person at this machine and nobody else.

It listens on the loopback address alone. A web page elsewhere could still make this browser ask here, or point a name of its own at
127.0.0.1; so the Host header must name this machine (any port: an SSH tunnel may end at another), and answers and scripts are refused to a
request that another site caused. Only GET and HEAD exist, answers are looked up by name, and the pages may load nothing from elsewhere.
"""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from turnwise.errors import TurnwiseError
from turnwise.pages.answers import Answers, as_json
from turnwise.pages.shelf import Shelf

ADDRESS = "127.0.0.1"
PORT = 7878
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
SCRIPTS = ("base.js", "data.js", "charts.js", "runs.js", "overview.js", "attempts.js", "turns.js", "compare.js", "main.js")
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


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # an idle connection gives its thread back

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except TurnwiseError as error:
            status, kind, body = HTTPStatus.NOT_FOUND, "application/json", as_json({"error": str(error)}).encode()
        except Exception as error:  # a page must hear of it; the server must go on
            words = f"{type(error).__name__}: {error}"
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", as_json({"error": words}).encode()
        self._send(status, kind, body)

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        if not HOST.fullmatch(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, "text/plain", b"This server answers only to 127.0.0.1 and localhost.\n"
        url = urlsplit(self.path)
        if url.path != "/" and self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):  # the page itself holds nothing
            return HTTPStatus.FORBIDDEN, "text/plain", b"Another site asked for this.\n"
        words = dict(parse_qsl(url.query, keep_blank_values=True, errors="surrogateescape"))
        match url.path.split("/"):
            case ["", ""]:
                return HTTPStatus.OK, KINDS["html"], page().encode()
            case ["", "static", name] if name in (SCRIPT, STYLE):
                body = script() if name == SCRIPT else static(STYLE)
                return HTTPStatus.OK, KINDS[name.rsplit(".", 1)[1]], body.encode()
            case ["", "api", name]:
                return HTTPStatus.OK, "application/json", as_json(self.server.answers(name, words)).encode()
            case ["", "picture"]:
                return HTTPStatus.OK, "image/png", self.server.answers.picture(words)
        return HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n"

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "turnwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the person."""


class Server(ThreadingHTTPServer):
    """Serves the runs of a folder. Port 0 takes a free one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, shelf: Shelf, port: int = PORT):
        self.answers = Answers(shelf)
        super().__init__((ADDRESS, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""
