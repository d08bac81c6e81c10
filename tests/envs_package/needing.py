"""For the tests against real packages: `ready("bfcl")` makes the package of an environment importable, or skips with what is missing.

Tests marked `long` run where TURNWISE_ENVS=all, as `make test-envs` does (tests/conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from turnwise.envs.needs import private_names, use_private
from turnwise.envs.registry import spec

OPENENV_PYTHON = os.environ.get("OPENENV_PYTHON") or (sys.executable if find_spec("openenv") else "")


def ready(name: str) -> None:
    """Skip this test, or the rest of this file, unless the environment can run here."""
    entry = spec(name)
    if left := [need.what for need in entry.needs if not need.met() and need.what != "an environment"]:  # verifiers' option: tests give it
        pytest.skip(f"{name} lacks {', '.join(left)}", allow_module_level=True)
    use_private(private_names(entry.needs))


@contextmanager
def openenv_server() -> Iterator[str]:
    """The address of a server of the real package openenv, which wants an older mcp than Turnwise and so another Python."""
    keep = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [OPENENV_PYTHON, str(Path(__file__).with_name("openenv_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=keep) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.terminate()
