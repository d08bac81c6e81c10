"""The connection to Ray: import it with a clear error if it is missing, start it on this machine or join it at an address, and leave it."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from turnwise.util.errors import MissingExtra, TurnwiseError

ANSWERS = 5.0  # seconds for an address to accept a connection
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2, with empty settings
SETTINGS = 4  # the kind of the first frame that a server of HTTP/2 sends
SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "1"}


def import_ray() -> Any:
    """Ray, or an error that says how to install it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise MissingExtra("a recipe with a [cluster] section", "cluster") from None
    return ray


def connect(address: str | None = None) -> bool:
    """Join the cluster at an address, or start Ray on this machine. Returns whether Ray was started or
    joined here, and should be left at the end; an existing connection is used as it is."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address is None:
        try:
            protect_token()
            with own_signals(), on_loopback(ray):
                ray.init(address="local", include_dashboard=False, **quiet)  # otherwise Ray joins what runs here already
        except Exception as error:
            raise TurnwiseError(f"Ray could not be started on this machine: {one_line(error)}") from error
        return True
    if address != "auto":
        check_address(address)
    with aside() as written:
        try:
            with own_signals():
                ray.init(address=address, **quiet)
        except Exception as error:
            raise TurnwiseError(f"cluster.address={address}: {_refused(address, error, written())}") from error
    return True


def _refused(address: str, error: Exception, written: str) -> str:
    """Why a cluster could not be joined, from the error and what Ray has written."""
    if "Unauthenticated" in written:
        return (
            "this Ray cluster asks for a token. Set RAY_AUTH_MODE=token in this shell and wherever `ray start` is called, with the same "
            "file ~/.ray/auth_token on all nodes, or RAY_AUTH_MODE=disabled everywhere"
        )
    how = "Start one with `ray start --head`, or leave cluster.address out" if address == "auto" else "Is it a Ray head node's address?"
    return f"no Ray cluster could be joined ({one_line(error)}). {how}"


@contextmanager
def aside() -> Iterator[Callable[[], str]]:
    """Ray's core writes a line per second to the terminal while it tries an address. They are put aside here; the result returns them."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(file.fileno(), 2)

        def written() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield written
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@contextmanager
def on_loopback(ray: Any) -> Iterator[None]:
    """Ray on one machine listens at 127.0.0.1 alone. It uses that address wherever it knows no clusters of several machines, which this
    variable decides, for the processes that it starts too. A user who has set the variable keeps its value."""
    constants = ray._private.ray_constants
    if SEVERAL_MACHINES in os.environ:
        yield
        return
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    os.environ[SEVERAL_MACHINES] = "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        del os.environ[SEVERAL_MACHINES]


def protect_token() -> None:
    """Whoever reads Ray's token can run code in a cluster. Ray would write it readable for everybody: it is written here, for its owner
    alone, and an existing one is made so."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_secret(path, secrets.token_hex(32))
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_uid == os.getuid() and state.st_mode & 0o077:
                os.fchmod(file.fileno(), 0o600)
    except OSError:  # a home folder that cannot be written to, or a link: Ray says what it lacks
        return


def write_secret(path: Path, text: str) -> None:
    """A new file that only its owner can read, from its first moment; one that exists is left as it is."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    try:
        with suppress(FileExistsError):
            path.hardlink_to(part)
    finally:
        part.unlink()


@contextmanager
def own_signals() -> Iterator[None]:
    """Ray puts a handler of its own on SIGTERM, which prints a stack and aborts. A run that is asked to end saves and exits instead."""
    ours = signal.getsignal(signal.SIGTERM) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    finally:
        if ours is not None:
            signal.signal(signal.SIGTERM, ours)


def leave(started: bool) -> None:
    """End the connection, and Ray itself if it was started here."""
    ray = import_ray()
    if started and ray.is_initialized():
        ray.shutdown()


def check_address(address: str) -> None:
    """An error if nothing listens at an address, or something else than Ray, for which Ray itself would wait for minutes."""
    if "://" in address:
        raise TurnwiseError(f"cluster.address={address}: give host:port of the head node; an address of Ray Client is not supported")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TurnwiseError(f"cluster.address={address}: an address is host:port, as 10.0.0.1:6379, or auto")
    try:
        with closing(socket.create_connection((host, int(port)), timeout=ANSWERS)) as connection:
            is_ray = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true") or _greets(connection)
    except OSError as error:
        raise TurnwiseError(
            f"cluster.address={address} does not answer ({one_line(error)}). Start the head node with `ray start --head --port={port}`, "
            "or leave cluster.address out to start Ray on this machine"
        ) from None
    if not is_ray:
        raise TurnwiseError(
            f"cluster.address={address}: what listens there is not the head node of a Ray cluster. Its port is 6379, unless "
            "`ray start --head` was given another one"
        )


def _greets(connection: socket.socket) -> bool:
    """Whether the other side answers as a server of gRPC does."""
    try:
        connection.sendall(GREETING)
        received = b""
        while len(received) < 4 and (more := connection.recv(64)):
            received += more
    except OSError:
        return False
    return len(received) >= 4 and received[3] == SETTINGS


def free_port() -> int:
    """A port that is free on this machine now."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def one_line(error: BaseException, longest: int = 300) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:longest]}".rstrip(": ")
