"""Runs a command and ends everything that it has started: `python guard.py PARENT STATUS WORD…`. Only the standard library is used.

On Linux this process adopts descendants that have lost their parent, also those in sessions of their own, so that none of them is missed.
They are killed when the command ends, on SIGTERM, and when PARENT dies, however that happens. STATUS is a file descriptor: one line says
how the command ended (its exit code, negative for a signal), or why it could not be started.

Worker processes of the pool end what their environments have started in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LAST_SECONDS = 5.0  # a process of another user cannot be killed


class Stopped(BaseException):
    """SIGTERM."""


def main(parent: int, status: int, words: list[str]) -> None:
    os.set_inheritable(status, False)
    signal.signal(signal.SIGTERM, _stop)
    code, groups = "-9", list[int]()
    try:
        adopt_orphans()
        _control(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() == parent:
            code = str(_run(words, status, groups))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Stopped:
        pass
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    end_descendants()
    with contextlib.suppress(OSError):
        os.write(status, f"{code}\n".encode())


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def adopt_orphans() -> None:
    """From now on, descendants that lose their parent become children of this process, also those in sessions of their own."""
    _control(SET_CHILD_SUBREAPER, 1)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run(words: list[str], status: int, groups: list[int]) -> int:
    """The exit code of the command. It gets a separate session, so that a signal to its process group does not reach this process; the
    group is added to `groups`."""
    guard, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            _control(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() == guard:
                os.execvp(words[0], words)
        except BaseException as error:
            os.write(status, f"cannot be started: {' '.join(str(error).split())}\n".encode(errors="replace"))
        finally:
            os._exit(127)
    groups.append(child)
    while True:
        ended, result = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(result)


def end_descendants() -> None:
    """Kill all descendants of this process, and wait for those that are its children."""
    until = time.monotonic() + LAST_SECONDS
    while time.monotonic() < until:
        _kill_below(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def end_tree(pid: int) -> None:
    """Kill another process and all that it has started."""
    send(signal.SIGSTOP, {pid})
    _kill_below(pid)
    send(signal.SIGKILL, {pid})


def end_own_tree() -> None:
    """Kill this process, its process group, and all that it has started."""
    _kill_below(os.getpid())
    os.killpg(0, signal.SIGKILL)


def _kill_below(pid: int) -> None:
    """Kill the descendants of a process. They are stopped first: what does not run starts nothing new."""
    seen: set[int] = set()
    while new := descendants(pid) - seen:
        send(signal.SIGSTOP, new)
        seen |= new
    send(signal.SIGKILL, seen)


def send(number: int, pids: set[int]) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(pid: int) -> set[int]:
    """The processes below a process, as /proc lists them."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for number in [int(entry.name) for entry in entries if entry.name.isdigit()]:
            with contextlib.suppress(OSError), open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123 (pathlib takes 10 ms to load)
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    children.setdefault(int(parent), []).append(number)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
