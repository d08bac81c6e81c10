"""How a sandbox is started: its limits, its programs and the arguments of bubblewrap."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.shell import cgroup
from turnwise_envs.shell.calls import call_filter

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


def start(limits: Limits, kind: Kind, check: bool) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and a handle from which the number of its first process inside can be read."""
    programs = require(kind)
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
    grouped = cgroup.prefix(memory_of_all(limits, kind == "gvisor"))
    around = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", PREPARE, "sh", str(limits.disk_mb), str(files_of(limits))]
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


def files_of(limits: Limits) -> int:
    """How many files and folders /work and /tmp each hold at most: one for every 4 KB, as if none were empty."""
    return limits.disk_mb << 8


def memory_of_all(limits: Limits, gvisor: bool) -> int:
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


def first_line(limits: Limits, kind: Kind) -> str:
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
