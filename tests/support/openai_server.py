"""A small server that speaks like an OpenAI-compatible one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler", dict[str, Any], int], None]


class Handler(BaseHTTPRequestHandler):
    """Hands every request to the test's own function, with the number of times that this prompt was asked before."""

    server: Any
    body: dict[str, Any]

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        with self.server.lock:
            self.server.seen.append((self.path, self.body, dict(self.headers)))
            before = sum(body == self.body for _, body, _ in self.server.seen) - 1
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        self.counts = True
        try:
            self.server.behave(self, self.body, before)
        finally:
            self.over()

    do_GET = do_POST

    def over(self) -> None:
        """The request counts no longer. Said before the answer is sent: the client may send the next one as soon as it has read it."""
        with self.server.lock:
            self.server.now -= self.counts
            self.counts = False

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        self.over()
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def complete(self, text: str = "go north", **choice: Any) -> None:
        chat = self.path.endswith("/chat/completions")
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        self.answer({"choices": [{**said, "finish_reason": "stop", **choice}]})

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(behave: Behaviour) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.behave, server.seen, server.lock, server.now, server.most = behave, [], threading.Lock(), 0, 0
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
