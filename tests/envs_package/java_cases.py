"""For the tests of environments in Java: which processes run, killing them, and waiting for their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import ROOT

PROGRAM = """
import sys, time
import turnwise as tw
env = tw.make({name!r}, **{options!r})
env.reset(env.tasks("train", n=1)[0])
print({where}, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int, seconds: float = 30.0) -> bool:
    """Whether a process ends within this time."""
    until = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not runs(pid)


def children(pid: int) -> list[int]:
    """The processes that a process started and that run."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if runs(int(child))]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def orphan(name: str, where: str, **options: object) -> int:
    """The Java process of a Python process that was killed while it played."""
    program = PROGRAM.format(name=name, options=options, where=where)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    try:
        java = int(parent.stdout.readline())
        assert runs(java)
    finally:
        kill(parent.pid)
        parent.wait()
        parent.stdout.close()
    return java
