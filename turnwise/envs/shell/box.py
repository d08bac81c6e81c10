"""A sandbox as processes: bubblewrap, or gVisor inside of it. It is started ahead, and filled with files when an attempt needs it.

    box = Box(Limits())         # starts, without waiting
    box.fill(tree)              # waits until it is up, then puts the files into /work
    box.stdin, box.stdout       # a bash that reads commands
    box.kill()                  # returns when no process of it is left; its files can still be read
    box.close()

Inside, only /usr of this machine is visible, read-only. /work and /tmp are file systems in memory with a size limit, which disappear with
the sandbox. With gVisor the programs run on a kernel of its own, which sees these same folders and nothing else.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from turnwise.envs.shell.tree import Entry, write_tree
from turnwise.util.errors import TurnwiseError, unknown_name

Kind = Literal["bubblewrap", "gvisor"]
PROGRAMS = {
    "bubblewrap": ("bwrap", "install bubblewrap (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"),
    "gvisor": ("runsc", "install gVisor (Debian 13 and later: apt-get install runsc; others: the release of runsc for your machine)"),
}
NOBODY = 65534
START = 20.0  # seconds for a sandbox to come up
PATH = "/usr/local/bin:/usr/bin:/bin"
USERS = b"root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/work:/bin/bash\n"
GROUPS = b"root:x:0:\nagent:x:1000:\n"
DATE = "2024-01-02T00:00:00Z"  # of commits, so that their names are the same everywhere
VARIABLES = {
    "PATH": PATH, "HOME": "/work", "LC_ALL": "C.UTF-8", "TZ": "UTC", "USER": "agent", "PAGER": "cat", "TERM": "dumb",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE,
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Per command: `seconds`, and `shown` bytes of output that are kept. In all: `memory_mb` of all processes together, `processes`,
    `disk_mb` of the working folder, `printed_mb` of output before a command is ended."""

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
    return paths


class Box:
    """A started sandbox with a bash that has run nothing yet."""

    def __init__(self, limits: Limits, kind: Kind = "bubblewrap"):
        self._root = self._watch = self._info = -1
        self._closed = False
        self._inside = "" if kind == "bubblewrap" else "/box"
        self._secret = secrets.token_hex(16)
        self.pid, self.own = -1, (0, 0)
        self._process, self._info = _start(limits, kind)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        with suppress(OSError):  # a sandbox that fails at once is reported by `ready`
            first = f'{_limited(limits)} && printf %s {self._secret} > /work/.start && printf "%s\\n" {self._secret} || exit 1\n'
            self.stdin.write(first.encode())
            self.stdin.flush()

    def ready(self) -> None:
        """Wait until the sandbox is up, and open its working folder. Its shell wrote a secret into it: a folder without that secret is not
        the sandbox's."""
        if self._root >= 0:
            return
        try:
            self._answered()
            self.pid = _child(self._info)
            os.close(self._info)
            self._info = -1
            self._watch = os.pidfd_open(self.pid)
            self._root = os.open(f"/proc/{self.pid}/root{self._inside}/work", os.O_RDONLY | os.O_DIRECTORY)
            handle = os.open(".start", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._root)
            with os.fdopen(handle, "rb") as file:
                if file.read(64) != self._secret.encode():
                    raise TurnwiseError("the sandbox's working folder cannot be reached from outside: nothing was run in it")
            os.unlink(".start", dir_fd=self._root)
            if self._inside:
                self.own = usage(self.pid)
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
                raise OSError(heard.decode("utf-8", "replace").strip() or "it did not start")
            heard += chunk

    def fill(self, tree: Mapping[str, Entry]) -> None:
        """Put files into the working folder, from outside; nothing but a shell that waits is inside."""
        self.ready()
        owner = NOBODY if os.geteuid() == 0 else None
        try:
            write_tree(self._root, tree, owner)
        except OSError as error:
            raise TurnwiseError(f"the files of the task do not fit into the sandbox: {error}") from error

    @property
    def root(self) -> int:
        """A handle of the working folder."""
        return self._root

    def pristine(self) -> bool:
        """Whether nothing runs but the waiting shell, and no file was made outside of the working folder. Not known of gVisor."""
        if self._inside:
            return False
        below = Path(f"/proc/{self.pid}/root")
        try:
            return usage(self.pid)[0] <= 2 and not any(os.scandir(below / "tmp")) and not any(os.scandir(below / "dev" / "shm"))
        except OSError:
            return False

    def alive(self) -> bool:
        """Whether it runs."""
        return not self._closed and self._process.poll() is None

    def kill(self) -> None:
        """End every process, and wait for it. The first process of the sandbox takes all others with it, and is gone only when they are."""
        self._strike()
        if self._watch >= 0:
            readable(self._watch, 5)
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)

    def _strike(self) -> None:
        """End the first process of the sandbox, or, if it is not known yet, bubblewrap, which takes it along."""
        if self._watch >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watch, signal.SIGKILL)
        else:
            self._process.kill()

    def close(self) -> None:
        """End the sandbox and forget its files. `reap` waits for the end."""
        if self._closed:
            return
        self._closed = True
        self._strike()
        _ending.append(self._process)
        for stream in (self.stdin, self.stdout):
            with suppress(OSError):
                stream.close()
        for handle in (self._info, self._watch, self._root):
            if handle >= 0:
                os.close(handle)
        self._root = self._watch = self._info = -1


_ending: list[subprocess.Popen[bytes]] = []  # closed, and not yet waited for


def reap(seconds: float = 0.0) -> None:
    """Forget the closed sandboxes that have ended, or wait for all of them for some time."""
    deadline = time.monotonic() + seconds
    for process in list(_ending):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
            _ending.remove(process)


def readable(handle: int, seconds: float) -> bool:
    """Wait until a handle can be read from, of whatever number."""
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(max(0.0, 1000 * seconds)))


def _start(limits: Limits, kind: Kind) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and a handle from which the number of its first process inside can be read."""
    programs = require(kind)
    reap()
    info_read, info_write = os.pipe()
    users, groups = _held(USERS), _held(GROUPS)
    inside = "" if kind == "bubblewrap" else "/box"
    command = [
        programs["bubblewrap"], "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv",
        *(word for name, value in VARIABLES.items() for word in ("--setenv", name, value)),
        *_system(inside), "--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
        "--size", str(limits.disk_mb << 20), "--perms", "1777", "--tmpfs", f"{inside}/tmp",
        "--size", str(limits.disk_mb << 20), "--perms", "0755", "--tmpfs", f"{inside}/work",
        "--ro-bind-data", str(users), f"{inside}/etc/passwd", "--ro-bind-data", str(groups), f"{inside}/etc/group",
        *(_gvisor(programs["gvisor"]) if kind == "gvisor" else ["--chdir", "/work", "--remount-ro", "/"]),
    ]  # fmt: skip
    at = command.index("--chdir")
    command[at:at] = ["--info-fd", str(info_write)]
    command += ["bash", "--noprofile", "--norc", "-s"]
    lowered, identity = _identity()
    try:
        process = subprocess.Popen(
            lowered + command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(info_write, users, groups),
            env={"PATH": os.environ.get("PATH", PATH)},
            **identity,
        )
    except BaseException:
        os.close(info_read)
        raise
    finally:
        for handle in (info_write, users, groups):
            os.close(handle)
    return process, info_read


def _gvisor(program: str) -> list[str]:
    """The end of bubblewrap's arguments if gVisor runs inside of it: all that its programs see is in /box."""
    return [
        "--ro-bind", program, "/runsc", "--dir", "/work", "--tmpfs", "/tmp", "--chdir", "/", "--remount-ro", "/",
        "/runsc", "--rootless", "--network=none", "--ignore-cgroups", "--overlay2=none", "--file-access=shared", "--root=/tmp/state",
        "do", "-quiet", "-force-overlay=false", "-root", "/box", "-cwd", "/work",
    ]  # fmt: skip


def _limited(limits: Limits) -> str:
    """What the shell does before anything else: it gives up the right to more than its limits. It does not remember where programs are,
    so that its state is what the agent made of it."""
    return f"set +h; ulimit -c 0 -v {limits.memory_mb << 10} -u {limits.processes} -f {limits.disk_mb << 10} -n 256"


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
    """The first process inside the sandbox, by its number outside."""
    data = b""
    while b"}" not in data:
        chunk = os.read(info, 4096)
        if not chunk:
            raise OSError("it did not start")
        data += chunk
    return int(json.loads(data)["child-pid"])


def usage(pid: int) -> tuple[int, int]:
    """How many processes run below this one, and the memory that they hold."""
    count, memory, waiting = 0, 0, [pid]
    page = os.sysconf("SC_PAGESIZE")
    while waiting and count < 10_000:
        own = waiting.pop()
        try:
            lists = [(thread / "children").read_text() for thread in Path(f"/proc/{own}/task").iterdir()]
            memory += int(Path(f"/proc/{own}/statm").read_text().split()[1]) * page
        except (OSError, ValueError, IndexError):
            continue
        waiting += [int(child) for children in lists for child in children.split()]
        count += 1
    return count, memory
