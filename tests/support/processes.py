"""For the tests of environments that start other processes: which run, killing them, and waiting for their end."""

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
print({printed}, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Whether any thread of a process runs; a process that ended and was not collected yet does not."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return any((thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX" for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}").exists()


def gone(*pids: int, seconds: float = 60.0) -> bool:
    """Whether processes end within this time."""
    until = time.monotonic() + seconds
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(runs, pids))


def children(pid: int) -> list[int]:
    """The processes that a process started and that run, and theirs."""
    try:
        started = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return []
    return [one for child in started if runs(child) for one in (child, *children(child))]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def orphans(name: str, printed: str = "'ready'", **options: object) -> list[int]:
    """The processes below a Python process that was killed while it played, and the numbers that it printed about itself."""
    program = PROGRAM.format(name=name, options=options, printed=printed)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        try:
            words = parent.stdout.readline().split()
            started = [*children(parent.pid), *(int(word) for word in words if word.isdigit())]
        finally:
            kill(parent.pid)
    assert words and started
    return started
