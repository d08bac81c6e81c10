"""The connection to Ray: import it with a clear error if it is missing, start it on this machine or join it at an address, and leave it."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import closing
from typing import Any

from turnwise.util.errors import MissingExtra, TurnwiseError

ANSWERS = 5.0  # seconds for an address to accept a connection
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


def connect(address: str | None = None, cpus: int | None = None) -> bool:
    """Join the cluster at an address, or start Ray on this machine with this many cores (None: all). Returns whether Ray was started or
    joined here, and should be left at the end; an existing connection is used as it is."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address is None:
        try:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)  # without it Ray joins whatever runs here already
        except Exception as error:
            raise TurnwiseError(f"Ray could not be started on this machine: {one_line(error)}") from error
        return True
    if address != "auto":
        check_address(address)
    try:
        ray.init(address=address, **quiet)
    except Exception as error:
        how = "Start one with `ray start --head`, or leave cluster.address out" if address == "auto" else "Is it a Ray head node's address?"
        raise TurnwiseError(f"cluster.address={address}: no Ray cluster could be joined ({one_line(error)}). {how}") from error
    return True


def leave(started: bool) -> None:
    """End the connection, and Ray itself if it was started here."""
    ray = import_ray()
    if started and ray.is_initialized():
        ray.shutdown()


def check_address(address: str) -> None:
    """An error if nothing listens at an address."""
    if "://" in address:
        raise TurnwiseError(f"cluster.address={address}: give host:port of the head node; an address of Ray Client is not supported")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TurnwiseError(f"cluster.address={address}: an address is host:port, as 10.0.0.1:6379, or auto")
    try:
        with closing(socket.create_connection((host, int(port)), timeout=ANSWERS)):
            pass
    except OSError as error:
        raise TurnwiseError(
            f"cluster.address={address} does not answer ({one_line(error)}). Start the head node with `ray start --head --port={port}`, "
            "or leave cluster.address out to start Ray on this machine"
        ) from None


def free_port(wanted: int | None = None) -> int:
    """The wanted port, or any free one; an error if it is in use."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", wanted or 0))
        except OSError:
            raise TurnwiseError(f"cluster.port={wanted} is in use on this machine: give another one, or none for any free port") from None
        return int(probe.getsockname()[1])


def one_line(error: BaseException, longest: int = 300) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:longest]}".rstrip(": ")
