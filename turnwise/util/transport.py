"""One JSON request over HTTP, with a limit on its total time. Redirects are never followed: a key is meant for the named server.

A socket timeout applies to one operation, so a server that sends a byte now and then would never reach it. Each request therefore has a
watchdog that closes its connection when the time is over. Every request has a separate connection; proxies are not used.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact

LARGEST_ANSWER = 64 * 2**20
WORDS_LIMIT = 500
Answer = TypeVar("Answer", dict[str, Any], list[Any])


class Failure(Exception):
    """A request without a valid response. `passing`: it may succeed later. `retry_after`: the seconds that the server asks to wait."""

    def __init__(self, message: str, *, passing: bool = False, status: int = 0, retry_after: float | None = None):
        super().__init__(message)
        self.passing, self.status, self.retry_after = passing, status, retry_after


class Transport:
    """Sends and receives JSON at paths under one address. Thread-safe."""

    def __init__(self, url: str, key: str, timeout: float):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TurnwiseError(f"server {redact(url)!r}: an address looks like http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise TurnwiseError(
                f"server {redact(url)!r}: remove user:password@ from the address; a key is read from an environment variable"
            )
        if any(character in key for character in "\r\n\0"):
            raise TurnwiseError(f"server {redact(url)!r}: its key has a line break in it")
        try:
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise TurnwiseError(f"server {redact(url)!r}: {error}") from None
        self._root = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._key, self._timeout = key, timeout
        self._live: dict[http.client.HTTPConnection, socket.socket | None] = {}
        self._lock = threading.Lock()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that the server answers with; a `Failure` for everything else."""
        return self._exchange("POST", path, json.dumps(body).encode(), dict)

    def get(self, path: str, kind: type[Answer] = dict) -> Answer:  # type: ignore[assignment]
        """The JSON object (or list) at a path; a `Failure` for everything else."""
        return self._exchange("GET", path, None, kind)

    def _exchange(self, method: str, path: str, body: bytes | None, kind: type[Answer]) -> Answer:
        connection = self._connection()
        watchman = threading.Timer(self._timeout, lambda: self._end(connection))
        watchman.daemon = True
        with self._lock:
            self._live[connection] = None
        watchman.start()
        try:
            connection.connect()
            with self._lock:
                if connection not in self._live:  # the watchdog fired before there was a socket to close
                    raise TimeoutError
                self._live[connection] = connection.sock  # a separate reference: the connection hands the socket over with the response
            connection.request(method, f"{self._root}/{path}", body, self._headers())
            answer = connection.getresponse()
            raw = answer.read(LARGEST_ANSWER + 1)
            missing = answer.length or 0  # of the announced bytes, if the connection ended early
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error, late=connection not in self._live) from None
        finally:
            watchman.cancel()
            with self._lock:
                in_time = connection in self._live
                self._live.pop(connection, None)
            connection.close()
        if not in_time:
            raise self._lost(TimeoutError(), True)
        if missing and len(raw) <= LARGEST_ANSWER:
            raise Failure(f"the connection ended {missing} bytes before the answer did", passing=True)
        return self._read(answer, raw, kind)

    def close(self) -> None:
        """Abort every pending request."""
        with self._lock:
            live = list(self._live)
        for connection in live:
            self._end(connection)

    def _end(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            sock = self._live.pop(connection, None)
        if sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # also under TLS: the reader is in the middle of its own state

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    def _lost(self, error: Exception, late: bool) -> Failure:
        if late or isinstance(error, TimeoutError):
            return Failure(f"no answer within {self._timeout:g} s", passing=True)
        wrong_name = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
        passing = not (wrong_name or isinstance(error, ssl.SSLCertVerificationError))
        return Failure(f"the connection failed: {type(error).__name__}: {error}", passing=passing)

    def _read(self, answer: http.client.HTTPResponse, raw: bytes, kind: type[Answer]) -> Answer:
        """The JSON object or list of an answer."""
        if len(raw) > LARGEST_ANSWER:
            raise Failure(f"an answer of more than {LARGEST_ANSWER} bytes")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            content = None
        fine = 200 <= answer.status < 300
        if fine and isinstance(content, kind):
            return content
        words = self._words(content, raw)
        if fine:
            raise Failure(f"an answer that is not a JSON {'list' if kind is list else 'object'}: {words}", passing=True)
        if 300 <= answer.status < 400:
            where = redact(" ".join(str(answer.getheader("Location", "nowhere")).split()))[:WORDS_LIMIT]
            raise Failure(
                f"HTTP {answer.status}: it points to {where}, which is not followed. Use that address instead", status=answer.status
            )
        passing = answer.status in (408, 409, 425, 429) or answer.status >= 500
        after = _seconds(answer.getheader("Retry-After")) if passing else None
        raise Failure(f"HTTP {answer.status}: {words}", passing=passing, status=answer.status, retry_after=after)

    def _words(self, content: Any, raw: bytes) -> str:
        """The server's message in one line, without the key that some servers repeat."""
        said: Any = None
        if isinstance(content, dict):
            said = content.get("error") or content.get("message") or content.get("detail")
            if isinstance(said, dict):
                said = " ".join(str(said[name]) for name in ("code", "message") if said.get(name)) or json.dumps(said)
        text = " ".join((str(said) if said else raw[: 4 * WORDS_LIMIT].decode("utf-8", "replace")).split())
        return redact(text.replace(self._key, "***") if self._key else text)[:WORDS_LIMIT] or "(nothing said)"


def _seconds(header: str | None) -> float | None:
    """`Retry-After`: a number of seconds or a date."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
