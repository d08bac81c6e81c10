"""A shell in a sandbox: bubblewrap with no network, a read-only system, and limits on memory, time, processes, files and output.

    shell = Shell(tree, Limits())
    done = shell.run("ls -l")          # Done(output, code, cwd, ended="")
    tree = shell.tree()                # the working folder as it is now
    shell.close()

One bash lives as long as the shell, so `cd`, variables and functions last. The working folder /work is a separate file system in memory
with a size limit; it disappears with the sandbox. Inside, only /usr of this machine is visible, read-only; home folders, sockets,
/etc (except generated names of users) and the network are not. A command that breaks a limit ends the whole sandbox: all of its processes
are killed, and `ended` says why. Without bubblewrap nothing is run at all.
"""

from __future__ import annotations

import json
import os
import re
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
from typing import Any

from turnwise.envs.shell.tree import Entry, packed, read_tree
from turnwise.util.errors import TurnwiseError

PROGRAM = "bwrap"
REMEDY = "install bubblewrap (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
NOBODY = 65534
ARCHIVE = "/tmp/.start.tar"
START = 10.0  # seconds for a sandbox to come up
LOOK = 0.02  # seconds between two looks at the processes of a running command
LINE_NUMBER = re.compile(r"^bash: line \d+: ", re.MULTILINE)  # counts the commands since the start, which says nothing
PATH = "/usr/local/bin:/usr/bin:/bin"
USERS = b"root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/work:/bin/bash\n"
GROUPS = b"root:x:0:\nagent:x:1000:\n"


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


@dataclass(frozen=True)
class Done:
    """The outcome of a command: its output (cut to what is shown), exit code and the folder that the shell is in now. `ended` is empty,
    or says why the sandbox had to be ended."""

    output: str
    code: int
    cwd: str
    ended: str = ""


def present() -> bool:
    """Whether bubblewrap is installed."""
    return shutil.which(PROGRAM) is not None


def require() -> str:
    """The path of bubblewrap; an error that says what to install if it is missing."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise TurnwiseError(f"the shell environment runs commands only in a sandbox, and {PROGRAM} is missing: {REMEDY}")
    return found


class Shell:
    """A bash in a sandbox of its own, in /work, which holds `tree`."""

    def __init__(self, tree: Mapping[str, Entry], limits: Limits | None = None, cwd: str = "/work"):
        self.limits = limits or Limits()
        self.cwd, self.ended = cwd, ""
        self._root, self._closed = -1, False
        self._process, self._pid = _start(self.limits, packed(tree))
        try:
            self._root = self._opened()
            self.run(f"rm /work/.start; cd -- {_quoted(cwd)} 2>/dev/null || cd /work", START)
        except BaseException:
            self.close()
            raise

    def _opened(self) -> int:
        """A handle of the working folder, filled. The shell writes a secret into it first: a folder without that secret is not the
        sandbox's."""
        secret = secrets.token_hex(16)
        done = self.run(f"tar -xpf {ARCHIVE} -C /work && rm -f {ARCHIVE} && printf %s {secret} > /work/.start", START)
        if done.ended or done.code:
            raise TurnwiseError(
                f"bubblewrap could not make a sandbox: {done.output or done.ended}. Does this machine allow user namespaces to its users "
                "(sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)? In a container they may have to be allowed"
            )
        root = os.open(f"/proc/{self._pid}/root/work", os.O_RDONLY | os.O_DIRECTORY)
        try:
            handle = os.open(".start", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=root)
            with os.fdopen(handle, "rb") as file:
                if file.read(64) != secret.encode():
                    raise TurnwiseError("the sandbox's working folder cannot be reached from outside: nothing was run in it")
        except BaseException:
            os.close(root)
            raise
        return root

    def run(self, command: str, seconds: float | None = None) -> Done:
        """Run a command and wait for its end, or for a limit; `seconds` takes the place of the time limit."""
        if self.ended:
            return Done("", 137, self.cwd, self.ended)
        mark = secrets.token_hex(16)
        line = f'eval {_quoted(command)} </dev/null 2>&1; printf "\\n%s %d %s\\n" {mark} "$?" "$PWD"\n'
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode("utf-8", "surrogatepass"))
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            return self._end("the shell is gone", b"")
        return self._read(mark.encode(), seconds or self.limits.seconds)

    def _read(self, mark: bytes, seconds: float) -> Done:
        """Output until the line with the mark."""
        limits, deadline = self.limits, time.monotonic() + seconds
        stream, mark = self._process.stdout, b"\n" + mark + b" "
        assert stream is not None
        output = bytearray()
        while True:
            now = time.monotonic()
            if now > deadline:
                return self._end(f"a command took longer than {seconds:g} seconds", output)
            ready, _, _ = select.select([stream], [], [], min(LOOK, deadline - now))
            if not ready:
                if reason := self._too_much():
                    return self._end(reason, output)
                continue
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return self._end("the shell exited", output)
            output += chunk
            found = output.find(mark, max(0, len(output) - len(chunk) - 8192))  # the mark's line may be cut between two chunks
            if found >= 0 and (end := output.find(b"\n", found + 1)) >= 0:
                code, cwd = bytes(output[found + len(mark) : end]).split(b" ", 1)
                self.cwd = os.fsdecode(cwd)
                return Done(_shown(output[:found], limits.shown), int(code), self.cwd)
            if len(output) > limits.printed_mb << 20:
                return self._end(f"a command printed more than {limits.printed_mb} MB", output)

    def _too_much(self) -> str:
        """Which limit the processes of the sandbox break together; empty if none."""
        count, memory = _usage(self._pid)
        if count > self.limits.processes:
            return f"more than {self.limits.processes} processes were running"
        if memory > self.limits.memory_mb << 20:
            return f"the processes used more than {self.limits.memory_mb} MB of memory"
        return ""

    def _end(self, reason: str, output: bytes | bytearray) -> Done:
        self.ended = reason
        self._kill()
        return Done(_shown(output, self.limits.shown), 137, self.cwd, reason)

    def tree(self, largest: int | None = None) -> dict[str, Entry]:
        """The working folder as it is now. It can still be read after the sandbox has ended, but not after `close`."""
        return read_tree(self._root, largest or (self.limits.disk_mb << 20) + (1 << 20))

    def _kill(self) -> None:
        """End every process of the sandbox. The first process of its namespace takes all others with it."""
        for pid in (self._pid, self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def freeze(self) -> None:
        """End all processes, keep the working folder readable: nothing can change it while it is checked."""
        self.ended = self.ended or "the attempt is over"
        self._kill()

    def close(self) -> None:
        """End the sandbox and forget the working folder."""
        self.ended = self.ended or "the sandbox was closed"
        if not self._closed:
            self._closed = True
            self._kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            if self._root >= 0:
                os.close(self._root)


def _shown(output: bytes | bytearray, most: int) -> str:
    """Output as text: what is not UTF-8 and what would act on a terminal is replaced. Of a long one the beginning and the end are kept."""
    text = LINE_NUMBER.sub("bash: ", output.decode("utf-8", "replace").replace("\r\n", "\n")).strip("\n")
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are not shown …]\n{text[-half:]}"
    return "".join(sign if sign in "\n\t" or sign.isprintable() else "�" for sign in text)


def _quoted(text: str) -> str:
    """A text as one word of bash; bash has no zero bytes."""
    return "'" + text.replace("\0", "").replace("'", "'\\''") + "'"


def _start(limits: Limits, content: bytes) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the first process inside the sandbox."""
    info_read, info_write = os.pipe()
    users, groups, archive = _held(USERS), _held(GROUPS), _held(content)
    command = [
        require(), "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv",
        "--setenv", "PATH", PATH, "--setenv", "HOME", "/work", "--setenv", "LC_ALL", "C.UTF-8", "--setenv", "TZ", "UTC",
        "--setenv", "USER", "agent", "--setenv", "GIT_CONFIG_NOSYSTEM", "1", "--setenv", "PAGER", "cat", "--setenv", "TERM", "dumb",
        *_system(), "--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
        "--size", str((limits.disk_mb << 20) + len(content)), "--perms", "1777", "--tmpfs", "/tmp",
        "--size", str(limits.disk_mb << 20), "--perms", "0755", "--tmpfs", "/work",
        "--file", str(archive), ARCHIVE, "--ro-bind-data", str(users), "/etc/passwd", "--ro-bind-data", str(groups), "/etc/group",
        "--remount-ro", "/", "--info-fd", str(info_write), "--chdir", "/work",
        "bash", "--noprofile", "--norc", "-c", _limited(limits),
    ]  # fmt: skip
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(info_write, users, groups, archive),
            **_identity(),
            env={"PATH": os.environ.get("PATH", PATH)},
        )
    finally:
        for handle in (info_write, users, groups, archive):
            os.close(handle)
    try:
        return process, _child(info_read, process)
    except (OSError, ValueError, LookupError) as error:
        process.kill()
        output = process.communicate()[0].decode("utf-8", "replace").strip()
        raise TurnwiseError(f"bubblewrap could not make a sandbox: {output or error}") from error
    finally:
        os.close(info_read)


def _limited(limits: Limits) -> str:
    """A bash that has given up the right to more than its limits, and then reads commands."""
    kilobytes = limits.memory_mb << 10
    bounds = f"ulimit -c 0 -v {kilobytes} -u {limits.processes} -f {limits.disk_mb << 10} -n 256"
    return f"{bounds} && exec bash --noprofile --norc -s 2>&1"


def _system() -> list[str]:
    """Arguments that show the programs of this machine, and nothing else of it."""
    found = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            found += ["--ro-bind", str(path), f"/{name}"]
    for shared in ("/etc/alternatives", "/etc/ld.so.cache"):
        found += ["--ro-bind-try", shared, shared]
    return found


def _identity() -> dict[str, Any]:
    """Who runs the sandbox. For the system's administrator the kernel counts no processes, so somebody without any rights does it."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}


def _held(data: bytes) -> int:
    """A handle of a file in memory with this content."""
    handle = os.memfd_create("turnwise")
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _child(info: int, process: subprocess.Popen[bytes]) -> int:
    """The first process inside the sandbox, by its number outside."""
    data, deadline = b"", time.monotonic() + START
    while time.monotonic() < deadline:
        ready, _, _ = select.select([info], [], [], 0.1)
        if ready:
            chunk = os.read(info, 4096)
            data += chunk
            if not chunk or b"}" in data:
                return int(json.loads(data)["child-pid"])
        elif process.poll() is not None:
            break
    raise OSError("it did not start")


def _usage(pid: int) -> tuple[int, int]:
    """How many processes run below this one, and the memory that they hold."""
    count, memory, waiting = 0, 0, [pid]
    page = os.sysconf("SC_PAGESIZE")
    while waiting and count < 10_000:
        own = waiting.pop()
        try:
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
            memory += int(Path(f"/proc/{own}/statm").read_text().split()[1]) * page
        except (OSError, ValueError, IndexError):
            continue
        waiting += map(int, children)
        count += 1
    return count, memory
