"""A Java process that plays for the environments of this Python process, reached through py4j.

    java = lease("textworld-express", jar, options, user)      # starts it, or shares the one that runs
    answer = java.call("step", lambda jvm: …, seconds=60)

All environments of a Python process share one Java process per program: a second environment costs a few megabytes instead of a few
hundred. It is ended when the last of them is closed, and it ends by itself when this process is gone, however that happened: its standard
input is a pipe from here. A call that takes too long, and a process that died, are errors of that call; the next reset starts a new
process. Each call waits for the one before, and needs the token that the process made when it started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from turnwise.envs.registry import Need
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import printable
from turnwise_envs.shared.java_wire import JavaError, Ref, Wire
from turnwise_envs.shared.packages import load

Answer = TypeVar("Answer")
REMEDY = "install a Java runtime, as with: apt install default-jre-headless"
START_SECONDS = 120.0
COMMON = ("-XX:+UseSerialGC", "-Xss4m", "-Dfile.encoding=UTF-8")
_running: dict[tuple[str, ...], Java] = {}


def needs_java() -> Need:
    """The requirement of a Java runtime."""
    return Need("Java", lambda: program() is not None, REMEDY)


def program() -> str | None:
    """The path of Java: in JAVA_HOME if that is set, otherwise in PATH."""
    home = os.environ.get("JAVA_HOME")
    own = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    return own or shutil.which("java")


def require(name: str) -> str:
    """The path of Java, or an error that says what to install."""
    if (found := program()) is None:
        raise TurnwiseError(f"{name} needs Java, and there is no `java` here: {REMEDY}")
    return found


class JavaLost(TurnwiseError):
    """The Java process died or was too slow, so it was ended: what it played is lost."""


class Java:
    """One process. `users` are the environments that play in it; `active` is whichever played last."""

    def __init__(self, name: str, jar: str, options: Sequence[str], environment: Mapping[str, str]):
        self.name, self.seconds, self.pid = name, START_SECONDS, os.getpid()
        self.users, self.active = set[int](), list[Any]()
        self.shelf: dict[str, Any] = {}  # what all environments of the process share
        self._process, port, token = _start(name, jar, options, environment)
        self._wire: Wire | None = None
        try:
            self._wire = Wire(port, token, START_SECONDS)
        except (OSError, EOFError):
            raise self._lost("its start", "died") from None
        quiet = self.new("java.io.PrintStream", "/dev/null" if os.name == "posix" else "NUL")
        self.static("java.lang.System", "setOut", quiet)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self.pid == os.getpid() and self._wire is not None and self._process.poll() is None

    @property
    def closed(self) -> bool:
        """Whether its end was noticed: by a call that failed, or because nobody needs it."""
        return self._wire is None

    def call(self, target: str, method: str, *arguments: Any) -> Any:
        """Call a method of an object there."""
        return self._do(method, lambda wire: wire.call(target, method, *arguments, seconds=self.seconds))

    def static(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a class there."""
        return self.call(f"z:{name}", method, *arguments)

    def new(self, name: str, *arguments: Any) -> Ref:
        """Make an object there."""
        return self._do(name, lambda wire: wire.new(name, *arguments, seconds=self.seconds))

    def texts(self, target: str, method: str, *arguments: Any) -> list[str]:
        """Call a method that returns a list of texts."""
        return self._do(method, lambda wire: wire.texts(target, method, *arguments, seconds=self.seconds))

    def field(self, target: str, name: str) -> Any:
        """Read a field of an object, or of a class if the target is `z:` and its name."""
        return self._do(name, lambda wire: wire.field(target, name, seconds=self.seconds))

    def forget(self, ref: Ref) -> None:
        """Let an object there be freed; never an error."""
        if self.alive:
            with contextlib.suppress(TurnwiseError):
                self._do("its end", lambda wire: wire.forget(ref, seconds=self.seconds))

    def _do(self, doing: str, function: Callable[[Wire], Answer]) -> Answer:
        if not self.alive or self._wire is None:
            raise self._lost(doing, "is gone")
        try:
            return function(self._wire)
        except JavaError as error:
            raise TurnwiseError(f"{self.name}: {doing} failed in its program: {error}") from None
        except TimeoutError:  # also an OSError, hence first
            raise self._lost(doing, f"gave no answer within {self.seconds:g} seconds and was ended,") from None
        except (OSError, EOFError):
            raise self._lost(doing, "died") from None
        except BaseException:  # Ctrl-C between question and answer: the next answer would be the wrong one
            self.close()
            raise

    def _lost(self, doing: str, how: str) -> JavaLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if how.startswith("gave") else 1.0)
        code = self._process.poll()
        self.close()
        ended = f" (killed by signal {-code})" if code is not None and code < 0 else f" (exit code {code})" if code is not None else ""
        return JavaLost(f"{self.name}: the Java process {how}{ended} during {doing}. The next reset starts a new one")

    def leave(self, user: object) -> None:
        """An environment no longer needs the process."""
        self.users.discard(id(user))
        self.active = [other for other in self.active if other is not user]
        if not self.users:
            self.close()

    def close(self) -> None:
        """End the process. A second call does nothing."""
        wire, self._wire = self._wire, None
        for key in [key for key, java in _running.items() if java is self]:
            del _running[key]
        self.shelf.clear()
        if wire is not None:
            wire.close()
        if self.pid != os.getpid():  # a copy of the Python process that started it must leave it alone
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def lease(name: str, jar: str, options: Sequence[str], user: object, environment: Mapping[str, str] | None = None) -> Java:
    """The process that runs `jar` with these options, started if there is none, with `user` among its users."""
    key = (name, jar, *options)
    java = _running.get(key)
    if java is None or not java.alive:
        java = _running[key] = Java(name, jar, options, environment or {})
    java.users.add(id(user))
    return java


def _start(name: str, jar: str, options: Sequence[str], environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int, str]:
    """A process that listens, its port, and the token that a client must have."""
    found = Path(load("py4j.java_gateway", f"the adapter {name}", name).find_jar_path()).resolve()
    if not found.is_file():
        raise TurnwiseError(f"{name}: the package py4j has no jar file here. Install it again with: pip install --force-reinstall py4j")
    classes = os.pathsep.join((str(found), jar))
    command = [require(name), *COMMON, *options, "-classpath", classes, "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    if os.name == "posix":  # Ctrl-C goes to all processes of a terminal: a run that saves its state still needs this one
        command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    settings = os.environ | {key: f"{os.environ.get(key, '')} {value}".strip() for key, value in environment.items()}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=Path(jar).parent, env=settings)
    assert process.stdout is not None and process.stderr is not None
    said: deque[str] = deque(maxlen=5)
    listener = threading.Thread(target=_keep_last, args=(process.stderr, said), daemon=True)
    listener.start()
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        lines = [process.stdout.readline().decode("ascii", "replace").strip() for _ in range(2)]
    finally:
        timer.cancel()
    if not lines[0].isdecimal() or not lines[1]:
        process.kill()
        code = process.wait()
        listener.join(1)
        words = next((f" ({line})" for line in said if line.strip()), "")
        raise TurnwiseError(f"{name}: Java did not start, exit code {code}{words}. Check that `{require(name)} -version` works")
    threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
    return process, int(lines[0]), lines[1]


def _keep_last(stream: IO[bytes], said: deque[str]) -> None:
    """Read what the program says about its errors, and keep the last lines."""
    with contextlib.suppress(OSError, ValueError):
        while line := stream.readline(1 << 12):
            said.append(printable(line.decode("utf-8", "replace").strip())[:300])


def _drain(stream: Any) -> None:
    """What the program prints is not needed, but a full pipe would stop it."""
    with contextlib.suppress(OSError, ValueError):
        while stream.read1(1 << 16):
            continue
