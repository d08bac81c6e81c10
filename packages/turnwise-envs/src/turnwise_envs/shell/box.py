"""A sandbox as processes: bubblewrap, or gVisor inside of it. It is started ahead, and filled with files when an attempt needs it.

    box = Box(Limits())         # starts, without waiting
    box.fill(tree)              # waits until it is up, then puts the files into /work
    box.stdin, box.stdout       # a bash that reads commands
    box.stop(); box.go_on()     # no process of it runs in between
    box.kill()                  # returns when no process of it is left; its files can still be read
    box.close()

Inside, only /usr of this machine is visible, read-only. /work and /tmp are file systems in memory with limits of size and number of
files, which disappear with the sandbox. They are made in a namespace around bubblewrap, through which this process reaches them. With
gVisor the programs run on a kernel of its own, which sees these same folders and nothing else. In a sandbox for a check, /work is
read-only, and HOME and the working folder are elsewhere.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from turnwise.util.errors import TurnwiseError
from turnwise_envs.shell import cgroup
from turnwise_envs.shell.measure import below, kernel_memory, members, memory_of, names, socket_memory, stored
from turnwise_envs.shell.start import NOBODY, START, STORES, Kind, Limits, files_of, first_line, memory_of_all, present, start
from turnwise_envs.shell.tree import Entry, TooLarge, write_tree

LOOK = 0.02  # seconds between two looks at the processes of a running command
COUNT = 0.1  # and between two counts of their handles and mappings
QUICKEST, FASTEST = 0.001, 2 << 30  # seconds between two looks if little is left, and bytes per second that a processor can take
STOPPING = 0.02, 1.0  # seconds for processes to stop: those that wait for something, and all
STOPPED = frozenset("TtZX")


def usable() -> bool:
    """Whether bubblewrap, if it is installed, can make a sandbox here: a kernel or a container can forbid it."""
    if not present():
        return True
    try:
        box = Box(Limits())
        box.ready()
        box.close()
        reap(START)
    except (TurnwiseError, OSError):
        return False
    return True


class Box:
    """A started sandbox with a bash that has run nothing yet."""

    def __init__(self, limits: Limits, kind: Kind = "bubblewrap", check: bool = False):
        self._root = self._watch = self._info = -1
        self._stores: list[int] = []  # handles of /work, /tmp and /dev/shm
        self._closed = False
        self._group: cgroup.Group | None = None
        self._namespace = Path()
        self._counted, self._used = (0.0, 0), 0  # what was measured last
        self._counter: threading.Thread | None = None
        self._halted: set[int] = set()  # the processes that wait for `go_on`
        self._gvisor = kind == "gvisor"
        self._secret = secrets.token_hex(16)
        self.pid, self.own, self.limits = -1, (0, 0), limits
        reap()
        self._process, self._info = start(limits, kind, check)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        with suppress(OSError):  # a sandbox that fails at once is reported by `ready`
            self.stdin.write(f'{first_line(limits, kind)} && printf "%s\\n" {self._secret} || exit 1\n'.encode())
            self.stdin.flush()
            os.set_blocking(self.stdin.fileno(), False)

    def ready(self) -> None:
        """Wait until the sandbox is up, limit its memory, and open its folders. Their number of files says that they are the sandbox's."""
        if self._root >= 0:
            return
        try:
            self._answered()
            self.pid = _child(self._info)
            os.close(self._info)
            self._info = -1
            self._watch = os.pidfd_open(self.pid)
            self._namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
            self._group = cgroup.join(memory_of_all(self.limits, self._gvisor), [self._process.pid, *below(self.pid)])
            for path in STORES.values():
                self._stores.append(os.open(f"/proc/{self._process.pid}/root{path}", os.O_RDONLY | os.O_DIRECTORY))
            self._root = self._stores[0]
            if os.fstatvfs(self._root).f_files != files_of(self.limits):
                raise TurnwiseError("the sandbox's working folder cannot be reached from outside: nothing was run in it")
            if self._gvisor:
                self.own = len(below(self.pid)), memory_of(below(self.pid))
        except (OSError, ValueError, LookupError) as error:
            self.close()
            raise TurnwiseError(
                f"the sandbox could not be made: {error}. Does this machine allow user namespaces to its users (sysctl "
                "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)? "
                "In a container they may have to be allowed"
            ) from error
        except BaseException:
            self.close()
            raise

    def _answered(self) -> None:
        """Read until the first answer of the shell; what came instead of it is the error."""
        heard, deadline, wanted = b"", time.monotonic() + START, self._secret.encode()
        while wanted not in heard:
            chunk = os.read(self.stdout.fileno(), 1 << 16) if readable(self.stdout.fileno(), deadline - time.monotonic()) else b""
            if not chunk:
                self._process.kill()
                raise OSError(heard.decode("utf-8", "replace").strip() or "it did not start")
            heard += chunk

    def fill(self, tree: Mapping[str, Entry]) -> None:
        """Put files into the working folder, from outside; nothing but a shell that waits is inside."""
        self.ready()
        owner = NOBODY if os.geteuid() == 0 else None
        try:
            write_tree(self._root, tree, owner)
        except OSError as error:
            kind = TooLarge if error.errno == errno.ENOSPC else TurnwiseError
            raise kind(f"the files of the task do not fit into the sandbox: {error}") from error

    @property
    def root(self) -> int:
        """A handle of the working folder."""
        return self._root

    def pristine(self) -> bool:
        """Whether nothing runs but the waiting shell, and no file was made outside of the working folder. Not known of gVisor."""
        if self._gvisor:
            return False
        try:
            return len(below(self.pid)) <= 2 and not any(names(store) for store in self._stores[1:])
        except OSError:
            return False

    def too_much(self) -> tuple[str, float]:
        """Which limit the processes break together, empty if none; and the time after which to look again. Without a cgroup, memory is
        measured, and the sandbox ends when it would be above the limit at the next look if it went on growing as since the last one."""
        processes, most = below(self.pid), self.limits.memory_mb << 20
        if len(processes) - self.own[0] > self.limits.processes:
            return f"more than {self.limits.processes} processes were running", 0
        if self._group is not None:
            return self.reason(), LOOK
        if not self._gvisor and time.monotonic() > self._counted[0] + COUNT and not (self._counter and self._counter.is_alive()):
            self._counter = threading.Thread(target=self._count, args=(processes,), daemon=True)
            self._counter.start()
        used = memory_of(processes) - self.own[1] + self._counted[1]
        if not self._gvisor:
            used += sum(stored(store) for store in self._stores) + socket_memory(self.pid)
        growth, self._used = max(0, used - self._used), used
        free = most - used - growth
        return (self._memory() if free < 0 else ""), min(LOOK, max(QUICKEST, free / (FASTEST * len(os.sched_getaffinity(0)))))

    def _count(self, processes: list[int]) -> None:
        """In a thread of its own: it may have to wait for a process that waits for its turn."""
        memory = kernel_memory(processes)
        self._counted = time.monotonic(), memory

    def reason(self) -> str:
        """Why the sandbox ended, if the kernel ended it."""
        return self._memory() if self._group is not None and self._group.broken() else ""

    def _memory(self) -> str:
        return f"the processes used more than {self.limits.memory_mb} MB of memory"

    def stop(self) -> bool:
        """Let no process go on until `go_on`, and wait until none does; False if they go on. Not done with gVisor, nor with a shell
        that is alone if the kernel limits its memory: it waits for the next command, and what else it could do harms only itself."""
        if self._gvisor:
            return True
        begin = time.monotonic()
        while True:
            processes = members(self.pid)[1:]
            running = [pid for pid, states in processes if not states <= STOPPED]
            if not running or (self._group is not None and len(processes) == 1):
                return True
            passed = time.monotonic() - begin
            if passed > STOPPING[0] and all(states <= STOPPED | {"D"} for _, states in processes):
                return True  # the others wait for the disk, or for a child that has stopped
            if passed > STOPPING[1]:
                return False
            self._halted |= set(running)
            for pid in running:
                self._send(pid, signal.SIGSTOP)
            time.sleep(0 if passed < 0.002 else 0.001)

    def go_on(self) -> None:
        """Let the processes go on, parents last: they have not seen their children stop."""
        if self._halted:
            for pid, _ in reversed(members(self.pid)[1:]):
                if pid in self._halted:  # others were stopped by the agent
                    self._send(pid, signal.SIGCONT)
            self._halted = set()

    def _send(self, pid: int, number: int) -> None:
        """Send a signal to a process of the sandbox. Its number may be another one's by now: what the handle is of is looked at first."""
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if Path(f"/proc/{pid}/ns/pid").readlink() == self._namespace:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def alive(self) -> bool:
        """Whether it runs."""
        return not self._closed and self._process.poll() is None

    def kill(self) -> None:
        """End every process, and wait for it. The first process of the sandbox takes all others with it, and is gone only when they are."""
        self._strike()
        if self._watch >= 0:
            readable(self._watch, 5)

    def _strike(self) -> None:
        """End the first process of the sandbox, which ends all others; those that are known are ended at once, as the first may have to
        wait for its turn. A sandbox that is not up yet is not killed, since bubblewrap would leave a process behind: its shell ends when
        it finds nothing to read."""
        if self._watch >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watch, signal.SIGKILL)
            for pid in below(self.pid)[1:]:
                self._send(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the sandbox and forget its files. `reap` waits for the end."""
        if self._closed:
            return
        self._closed = True
        self._strike()
        _ending.append((self._process, self._group))
        for stream in (self.stdin, self.stdout):
            with suppress(OSError):
                stream.close()
        for handle in (self._info, self._watch, *self._stores):
            if handle >= 0:
                os.close(handle)
        self._root = self._watch = self._info = -1
        self._stores = []


_ending: list[tuple[subprocess.Popen[bytes], cgroup.Group | None]] = []  # closed, and not yet waited for


def reap(seconds: float = 0.0) -> None:
    """Forget the closed sandboxes that have ended, or wait for all of them for some time."""
    deadline = time.monotonic() + seconds
    for process, group in list(_ending):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
            while group is not None and not group.close() and time.monotonic() < deadline:
                time.sleep(0.001)
            if group is None or group.close():
                _ending.remove((process, group))


atexit.register(reap, 2.0)


def readable(handle: int, seconds: float) -> bool:
    """Wait until a handle can be read from, of whatever number."""
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(max(0.0, 1000 * seconds)))


def _child(info: int) -> int:
    """The number of the first process inside, which bubblewrap wrote before that process went on."""
    return int(json.loads(os.pread(info, 1 << 16, 0))["child-pid"])
