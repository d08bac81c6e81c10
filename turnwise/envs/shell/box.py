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

import errno
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, get_args

from turnwise.envs.shell import cgroup
from turnwise.envs.shell.calls import call_filter
from turnwise.envs.shell.tree import Entry, TooLarge, write_tree
from turnwise.util.errors import TurnwiseError, unknown_name

Kind = Literal["bubblewrap", "gvisor"]
PROGRAMS = {
    "bubblewrap": ("bwrap", "install bubblewrap (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"),
    "gvisor": ("runsc", "install gVisor (Debian 13 and later: apt-get install runsc; others: the release of runsc for your machine)"),
}
NOBODY = 65534
START = 20.0  # seconds for a sandbox to come up
LOOK = 0.02  # seconds between two looks at the processes of a running command
COUNT = 0.1  # and between two counts of their handles and mappings
QUICKEST, FASTEST = 0.001, 2 << 30  # seconds between two looks if little is left, and bytes per second that a processor can take
STOPPING = 0.02, 1.0  # seconds for processes to stop: those that wait for something, and all
STOPPED = frozenset("TtZX")
OWNED = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap|VmPTE|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)
PATH = "/usr/local/bin:/usr/bin:/bin"
USERS = b"root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/work:/bin/bash\n"
GROUPS = b"root:x:0:\nagent:x:1000:\n"
DATE = "2024-01-02T00:00:00Z"  # of commits, so that their names are the same everywhere
VARIABLES = {
    "PATH": PATH, "HOME": "/work", "LC_ALL": "C.UTF-8", "TZ": "UTC", "USER": "agent", "PAGER": "cat", "TERM": "dumb",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE,
}  # fmt: skip
CHECKING = {  # a check of a repository runs no program that its settings name
    "HOME": "/tmp", "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_REPLACE_OBJECTS": "1", "GIT_CONFIG_COUNT": "4", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.fsmonitor", "GIT_CONFIG_VALUE_1": "false", "GIT_CONFIG_KEY_2": "core.hooksPath",
    "GIT_CONFIG_VALUE_2": "/dev/null", "GIT_CONFIG_KEY_3": "log.showSignature", "GIT_CONFIG_VALUE_3": "false",
}  # fmt: skip
# The file systems of a sandbox, and where they are mounted in the namespace around bubblewrap: folders that every system has, which
# nothing there needs.
STORES = {"work": "/sys/fs", "tmp": "/sys/kernel", "shm": "/sys/bus"}
PREPARE = (  # arguments: the size of /work and of /tmp in MB, the number of files in each, and the command
    f"mount -t tmpfs -o size=$1m,nr_inodes=$2,mode=755 tmpfs {STORES['work']} && "
    f"mount -t tmpfs -o size=$1m,nr_inodes=$2,mode=1777 tmpfs {STORES['tmp']} && "
    f"mount -t tmpfs -o size=1m,nr_inodes=256,mode=1777 tmpfs {STORES['shm']} && "
    'shift 2 && unset PATH PWD OLDPWD SHLVL && exec "$@"'
)
GVISOR = 128 << 20  # bytes that gVisor itself may take
HANDLE, SOCKET, CONNECTION = 32 << 10, 512 << 10, 3 << 20  # bytes that the kernel may hold for one of them
MAPPED, MAPPINGS = 1 << 16, 16 << 20  # bytes of a long list of mappings, and those that the kernel holds for the longest


@dataclass(frozen=True)
class Limits:
    """Per command: `seconds`, and `shown` bytes of output that are kept. In all: `memory_mb` of all processes together, `processes`,
    `disk_mb` of the working folder and of /tmp, with a file for every 4 KB, `printed_mb` of output before a command is ended."""

    seconds: float = 10.0
    memory_mb: int = 512
    processes: int = 64
    disk_mb: int = 16
    printed_mb: int = 16
    shown: int = 4000

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise TurnwiseError(f"shell: limit {name} must be positive, not {getattr(self, name)!r}")


def present(kind: Kind = "bubblewrap") -> bool:
    """Whether this sandbox is installed. gVisor runs inside bubblewrap, so it needs both."""
    return all(shutil.which(PROGRAMS[name][0]) is not None for name in {"bubblewrap", kind})


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


def require(kind: Kind = "bubblewrap") -> dict[str, str]:
    """The paths of the programs; an error that says what to install if one is missing."""
    if kind not in get_args(Kind):
        raise unknown_name("sandbox of the shell environment:", str(kind), get_args(Kind))
    paths: dict[str, str] = {}
    for name in dict.fromkeys(("bubblewrap", kind)):
        program, remedy = PROGRAMS[name]
        found = shutil.which(program)
        if found is None:
            raise TurnwiseError(f"the shell environment runs commands only in a sandbox, and {program} is missing: {remedy}")
        paths[name] = found
    for program in ("unshare", "mount"):
        if shutil.which(program, path=PATH) is None:
            raise TurnwiseError(f"the shell environment runs commands only in a sandbox, and {program} is missing: install util-linux")
    return paths


class Box:
    """A started sandbox with a bash that has run nothing yet."""

    def __init__(self, limits: Limits, kind: Kind = "bubblewrap", check: bool = False):
        self._root = self._watch = self._info = -1
        self._stores: list[int] = []  # handles of /work, /tmp and /dev/shm
        self._closed = False
        self._group: cgroup.Group | None = None
        self._namespace = Path()
        self._counted, self._used = (0.0, 0), 0  # what was measured last
        self._halted: set[int] = set()  # the processes that wait for `go_on`
        self._gvisor = kind == "gvisor"
        self._secret = secrets.token_hex(16)
        self.pid, self.own, self.limits = -1, (0, 0), limits
        self._process, self._info = _start(limits, kind, check)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        with suppress(OSError):  # a sandbox that fails at once is reported by `ready`
            self.stdin.write(f'{_limited(limits, kind)} && printf "%s\\n" {self._secret} || exit 1\n'.encode())
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
            self._group = cgroup.join(_most(self.limits, self._gvisor), [self._process.pid, *_below(self.pid)])
            for path in STORES.values():
                self._stores.append(os.open(f"/proc/{self._process.pid}/root{path}", os.O_RDONLY | os.O_DIRECTORY))
            self._root = self._stores[0]
            if os.fstatvfs(self._root).f_files != _files(self.limits):
                raise TurnwiseError("the sandbox's working folder cannot be reached from outside: nothing was run in it")
            if self._gvisor:
                self.own = len(_below(self.pid)), memory_of(_below(self.pid))
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
            return len(_below(self.pid)) <= 2 and not any(_names(store) for store in self._stores[1:])
        except OSError:
            return False

    def too_much(self, left: float) -> tuple[str, float]:
        """Which limit the processes break together, empty if none; and the time after which to look again. Without a cgroup, memory is
        measured, and the sandbox ends when it would be above the limit at the next look if it went on growing as since the last one.
        `left`: seconds of the command."""
        processes, most = _below(self.pid), self.limits.memory_mb << 20
        if len(processes) - self.own[0] > self.limits.processes:
            return f"more than {self.limits.processes} processes were running", 0
        if self._group is not None:
            return self.reason(), LOOK
        now = time.monotonic()
        if not self._gvisor and now > self._counted[0] + COUNT and left > 3 * COUNT:  # to count may have to wait for a process
            self._counted = now, _kernel(processes, most)
        used = memory_of(processes) - self.own[1] + self._counted[1]
        if not self._gvisor:
            used += sum(_stored(store) for store in self._stores) + _sockets(self.pid)
        growth, self._used = max(0, used - self._used), used
        free = most - used - growth
        return (self._memory() if free < 0 else ""), min(LOOK, max(QUICKEST, free / (FASTEST * len(os.sched_getaffinity(0)))))

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
        start = time.monotonic()
        while True:
            processes = members(self.pid)[1:]
            running = [pid for pid, states in processes if not states <= STOPPED]
            if not running or (self._group is not None and len(processes) == 1):
                return True
            passed = time.monotonic() - start
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
            for pid in _below(self.pid)[1:]:
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


def readable(handle: int, seconds: float) -> bool:
    """Wait until a handle can be read from, of whatever number."""
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(max(0.0, 1000 * seconds)))


def _start(limits: Limits, kind: Kind, check: bool) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and a handle from which the number of its first process inside can be read."""
    programs = require(kind)
    reap()
    info = _held(b"")  # not a pipe: bubblewrap would leave a process behind if nobody read it any more
    handles = [info, _held(USERS), _held(GROUPS)]
    inside = "" if kind == "bubblewrap" else "/box"
    command = [
        programs["bubblewrap"], "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv",
        *(word for name, value in (VARIABLES | (CHECKING if check else {})).items() for word in ("--setenv", name, value)),
        *_system(inside), "--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero",  # zeros that cannot be mapped
        "--bind", STORES["shm"], "/dev/shm", "--remount-ro", "/dev", "--bind", STORES["tmp"], f"{inside}/tmp",
        "--ro-bind" if check else "--bind", STORES["work"], f"{inside}/work",
        "--ro-bind-data", str(handles[1]), f"{inside}/etc/passwd", "--ro-bind-data", str(handles[2]), f"{inside}/etc/group",
    ]  # fmt: skip
    if kind == "bubblewrap":
        if calls := call_filter(cgroup.available()):
            handles.append(_held(calls))
            command += ["--seccomp", str(handles[-1])]
        command += _no_namespaces(programs["bubblewrap"])
    command += ["--info-fd", str(info)]
    folder = "/tmp" if check else "/work"
    command += _gvisor(programs["gvisor"], folder) if kind == "gvisor" else ["--chdir", folder, "--remount-ro", "/"]
    command += ["bash", "--noprofile", "--norc", "-s"]
    grouped = cgroup.prefix(_most(limits, kind == "gvisor"))
    around = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", PREPARE, "sh", str(limits.disk_mb), str(_files(limits))]
    around += ["/usr/bin/env", "-i"] if grouped else []
    lowered, identity = _identity()
    bus = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if grouped and name in os.environ}
    try:
        process = subprocess.Popen(
            grouped + lowered + around + command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=handles,
            env={"PATH": PATH} | bus,
            cwd="/",
            **identity,
        )
    except BaseException:
        os.close(info)
        raise
    finally:
        for handle in handles[1:]:
            os.close(handle)
    return process, info


def _files(limits: Limits) -> int:
    """How many files and folders /work and /tmp each hold at most: one for every 4 KB, as if none were empty."""
    return limits.disk_mb << 8


def _most(limits: Limits, gvisor: bool) -> int:
    """Bytes of memory of a whole sandbox."""
    return (limits.memory_mb << 20) + (GVISOR if gvisor else 0)


@cache
def _no_namespaces(program: str) -> list[str]:
    """Arguments that forbid further user namespaces: bubblewrap knows them since 0.8."""
    try:
        known = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=START, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return ["--disable-userns"] if "--disable-userns" in known.stdout + known.stderr else []


def _gvisor(program: str, folder: str) -> list[str]:
    """The end of bubblewrap's arguments if gVisor runs inside of it: all that its programs see is in /box."""
    return [
        "--ro-bind", program, "/runsc", "--dir", "/work", "--tmpfs", "/tmp", "--chdir", "/", "--remount-ro", "/",
        "/runsc", "--rootless", "--network=none", "--ignore-cgroups", "--overlay2=none", "--file-access=shared", "--root=/tmp/state",
        "do", "-quiet", "-force-overlay=false", "-root", "/box", "-cwd", folder,
    ]  # fmt: skip


def _limited(limits: Limits, kind: Kind) -> str:
    """What the shell does before anything else: it gives up the right to more than its limits. It does not remember where programs are,
    so that its state is what the agent made of it."""
    more = " -l 64 -q 0 -i 256" if kind == "bubblewrap" else ""  # locked memory, messages, signals and timers; unknown to gVisor
    return f"set +h; ulimit -c 0 -v {limits.memory_mb << 10} -u {limits.processes} -f {limits.disk_mb << 10} -n 256{more}"


def _system(inside: str) -> list[str]:
    """Arguments that show the programs of this machine, and nothing else of it."""
    found = [word for made in (inside, f"{inside}/etc") if made for word in ("--perms", "0755", "--dir", made)]
    found += ["--ro-bind", "/usr", f"{inside}/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), f"{inside}/{name}"]
        elif path.is_dir():
            found += ["--ro-bind", str(path), f"{inside}/{name}"]
    for shared in ("/etc/alternatives", "/etc/ld.so.cache"):
        found += ["--ro-bind-try", shared, f"{inside}{shared}"]
    return found


def _identity() -> tuple[list[str], dict[str, Any]]:
    """Who runs the sandbox. For the system's administrator the kernel counts no processes, so somebody without any rights does it.
    `setpriv` changes to them in a process of its own, which saves a copy of this process's memory tables."""
    if os.geteuid() != 0:
        return [], {}
    if found := shutil.which("setpriv"):
        return [found, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"], {}
    return [], {"user": NOBODY, "group": NOBODY, "extra_groups": ()}


def _held(data: bytes) -> int:
    """A handle of a file in memory with this content."""
    handle = os.memfd_create("turnwise")
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _child(info: int) -> int:
    """The number of the first process inside, which bubblewrap wrote before that process went on."""
    return int(json.loads(os.pread(info, 1 << 16, 0))["child-pid"])


def _below(pid: int) -> list[int]:
    """The processes from this one down, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < 10_000:
        one = waiting.pop()
        with suppress(OSError):
            for thread in _names(f"/proc/{one}/task"):
                with suppress(OSError):
                    waiting += [int(child) for child in _start_of(f"/proc/{one}/task/{thread}/children", 1 << 20).split()]
            found.append(one)
    return found


def members(pid: int) -> list[tuple[int, set[str]]]:
    """The same, with the states of their threads."""
    found = []
    for one in _below(pid):
        states = set()
        with suppress(OSError):
            for thread in _names(f"/proc/{one}/task"):
                with suppress(OSError):
                    states.add(_start_of(f"/proc/{one}/task/{thread}/stat", 4096).rpartition(b")")[2][1:2].decode())
        if states:
            found.append((one, states))
    return found


def memory_of(processes: Sequence[int]) -> int:
    """The memory that these processes hold: pages, and the tables of pages."""
    memory = 0
    for one in processes:
        with suppress(OSError):
            memory += sum(int(size) for size in OWNED.findall(_start_of(f"/proc/{one}/status", 1 << 14))) << 10
    return memory


def _kernel(processes: Sequence[int], most: int) -> int:
    """An estimate from above of what the kernel holds for these processes: behind their handles, and for their mappings. Not more than
    about `most` is counted."""
    memory = 0
    for one in processes:
        with suppress(OSError):
            memory += HANDLE * max(0, (Path(f"/proc/{one}/fd").stat().st_size or len(_names(f"/proc/{one}/fd"))) - 8)
            memory += MAPPINGS * (len(_start_of(f"/proc/{one}/maps", MAPPED)) == MAPPED)
        if memory > most:
            break
    return memory


def _sockets(pid: int) -> int:
    """The same for the sockets of the sandbox."""
    with suppress(OSError, IndexError, ValueError):
        sockets, _, rest = _start_of(f"/proc/{pid}/net/sockstat", 4096).partition(b"\n")
        return SOCKET * max(0, int(sockets.split()[-1]) - 8) + CONNECTION * max(0, int(rest.split()[2]) - 8)
    return 0


def _names(folder: str | int) -> list[str]:
    with os.scandir(folder) as listing:
        return [item.name for item in listing]


def _start_of(path: str, most: int) -> bytes:
    """The first bytes of a file of /proc, of which one call gives a part."""
    handle, parts = os.open(path, os.O_RDONLY), []
    try:
        while most > 0 and (part := os.read(handle, min(most, 1 << 16))):
            parts.append(part)
            most -= len(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def _stored(store: int) -> int:
    """Bytes that a file system in memory holds."""
    status = os.fstatvfs(store)
    return (status.f_blocks - status.f_bfree) * status.f_frsize + (status.f_files - status.f_ffree) * 1400
