"""A Chromium, driven over two pipes by the DevTools protocol: one browser per process, one page per environment.

Nothing but the browser itself is needed: no driver program, no port, no second process that translates. The pipes also tie both
processes together. When the browser dies, the next read finds the pipe closed; when this process dies, however it dies, the browser finds
its pipe closed and ends. Calls are made one after another under a lock, so pages may be used from several threads.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import printable

ANSWER = 60.0  # seconds: no command takes that long unless a page loops for ever
START = 60.0
END = 5.0
WIDTH, HEIGHT = 500, 320  # as in the package
PROFILES = "turnwise-chromium-"
MISSING = "miniwob needs Chromium. Install it (apt-get install chromium), or set TURNWISE_CHROMIUM to the path of a Chrome or Chromium"
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check",
    "--mute-audio", "--hide-scrollbars", "--lang=en-US", "--force-color-profile=srgb", "--force-device-scale-factor=1",
    "--disable-extensions", "--disable-component-extensions-with-background-pages", "--disable-default-apps", "--disable-sync",
    "--disable-component-update", "--disable-background-networking", "--disable-breakpad", "--disable-crash-reporter",
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding", "--disable-background-timer-throttling",
    "--disable-hang-monitor", "--disable-popup-blocking", "--disable-search-engine-choice-screen", "--password-store=basic",
    "--renderer-process-limit=1", "--disable-site-isolation-trials", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-features=Translate,MediaRouter,OptimizationHints,PaintHolding",
    "--no-sandbox",  # the pages are those of the package, and nothing is reached over a network
)  # fmt: skip


class BrowserGone(TurnwiseError):
    """The browser ended, or does not answer any more. The next page starts a new one."""


class Command(NamedTuple):
    """One message to the browser."""

    method: str
    given: dict[str, Any]


def find_chromium() -> str | None:
    """The browser of this machine, if there is one."""
    named = os.environ.get("TURNWISE_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None)


class Browser:
    """A running Chromium. `pages` counts those that are open; the last one to be closed ends it."""

    def __init__(self) -> None:
        path = find_chromium()
        if path is None:
            raise TurnwiseError(MISSING)
        self.lock = threading.RLock()
        self.owner, self.pages, self._count, self._read = os.getpid(), 0, 0, b""
        self._profile = _profile()
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        told = tempfile.TemporaryFile()  # noqa: SIM115  (what it prints about itself, for the case that it does not start)
        try:
            self.pid = _spawn(path, self._profile, theirs_in, theirs_out, told.fileno())
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._ended: str | None = None
        atexit.register(self.close)
        try:
            self.call("Browser.getVersion", within=START)
            told.close()
        except BrowserGone as error:
            said = _last_line(told)
            raise BrowserGone(f"{path} did not start: {error}{said}. Check that `{path} --headless --version` works") from None

    @property
    def alive(self) -> bool:
        """Whether it still runs, as far as is known, and belongs to this process and not to the one that it was forked from."""
        if self.owner != os.getpid() or self._ended is not None:
            return False
        with self.lock:
            gone = _ended(self.pid)
            if gone is not None:
                self._give_up(gone)
        return self._ended is None

    def call(self, method: str, session: str | None = None, within: float = ANSWER, **given: Any) -> dict[str, Any]:
        """Send one command and return the answer."""
        return self.call_all([Command(method, given)], session, within)[0]

    def call_all(self, commands: Sequence[Command], session: str | None = None, within: float = ANSWER) -> list[dict[str, Any]]:
        """Send commands together and return their answers. An answer that is an error raises a `TurnwiseError`."""
        with self.lock:
            if self._ended is not None:
                raise BrowserGone(self._ended)
            first = self._count + 1
            self._count += len(commands)
            whole = b""
            for number, command in enumerate(commands, first):
                message: dict[str, Any] = {"id": number, "method": command.method, "params": command.given}
                whole += json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
            deadline = time.monotonic() + within
            self._write(whole, deadline)
            answers: dict[int, dict[str, Any]] = {}
            while len(answers) < len(commands):
                message = self._message(deadline)
                if first <= message.get("id", 0):
                    answers[message["id"]] = message
        for number, command in enumerate(commands, first):
            if "error" in answers[number]:
                raise TurnwiseError(f"the browser refused {command.method}: {answers[number]['error'].get('message', '')}")
        return [answers[number]["result"] for number in range(first, first + len(commands))]

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            if not select.select([], [self._out], [], max(0.0, deadline - time.monotonic()))[1]:
                raise self._stuck()
            try:
                view = view[os.write(self._out, view[:65536]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._lost() from None

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._stuck()
            chunk = os.read(self._in, 1 << 18)
            if not chunk:
                raise self._lost()
            self._read += chunk
        packed, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(packed)
        return message

    def _stuck(self) -> BrowserGone:
        return self._give_up("the browser did not answer in time and was ended")

    def _lost(self) -> BrowserGone:
        """The pipe is closed: the reason is known once the process is gone."""
        until = time.monotonic() + END
        while (reason := _ended(self.pid)) is None and time.monotonic() < until:
            time.sleep(0.01)
        return self._give_up(reason or "the browser closed its connection")

    def _give_up(self, reason: str) -> BrowserGone:
        self._ended = reason
        self._clean_up()
        return BrowserGone(reason)

    def _clean_up(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + END
        while _ended(self.pid) is None and time.monotonic() < until:
            time.sleep(0.01)
        for handle in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(handle)
        shutil.rmtree(self._profile, ignore_errors=True)
        atexit.unregister(self.close)

    def close(self) -> None:
        """End the browser with all its processes."""
        if self.owner != os.getpid():
            return
        with self.lock:
            if self._ended is None:
                self._give_up("the browser was closed")


def _ended(pid: int) -> str | None:
    """Why a child is no longer running; None if it is."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "the browser ended"
    if not done:
        return None
    code = os.waitstatus_to_exitcode(status)
    return f"the browser was killed by signal {-code}" if code < 0 else f"the browser ended with code {code}"


def _pipe() -> tuple[int, int]:
    """A pipe whose handles are above those that the browser expects its own at."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _last_line(told: IO[bytes]) -> str:
    """The last line that the browser printed, in brackets; empty if it printed nothing."""
    with told:
        told.seek(0)
        lines = told.read(1 << 20).decode("utf-8", "replace").split("\n")
    return next((f" ({printable(line.strip())[:300]})" for line in reversed(lines) if line.strip()), "")


def _spawn(path: str, profile: str, reads: int, writes: int, told: int) -> int:
    """Start the browser, which reads its handle 3 and writes its handle 4."""
    null = [(os.POSIX_SPAWN_OPEN, handle, os.devnull, os.O_RDWR, 0) for handle in (0, 1)]
    pipes = [(os.POSIX_SPAWN_DUP2, told, 2), (os.POSIX_SPAWN_DUP2, reads, 3), (os.POSIX_SPAWN_DUP2, writes, 4)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "FONTCONFIG_PATH") if name in os.environ}
    environment = {**kept, "TZ": "UTC", "LANG": "C.UTF-8", "LANGUAGE": "en_US"}
    return os.posix_spawn(path, [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"], environment, file_actions=[*null, *pipes])


def _profile() -> str:
    """A folder for the browser's files. Those of processes that were killed are removed."""
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{PROFILES}*"):
        owner = old.name.removeprefix(PROFILES).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and old.stat().st_uid == os.getuid():
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{PROFILES}{os.getpid()}-")


_shared: Browser | None = None
_sharing = threading.Lock()


def shared_browser() -> Browser:
    """The browser of this process: a new one if there is none, or if it ended."""
    global _shared
    with _sharing:
        if _shared is None or not _shared.alive:
            _shared = Browser()
        _shared.pages += 1
        return _shared


def leave_browser(browser: Browser) -> None:
    """A page fewer. Without pages the browser ends."""
    with _sharing:
        browser.pages -= 1
        if browser.pages <= 0:
            browser.close()
