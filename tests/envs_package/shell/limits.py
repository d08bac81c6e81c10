"""Every way of ways.py against the shell environment, many times: does a file of the host change, is a limit exceeded?

    python tests/envs_package/shell/limits.py --attempts 10                                    # as this user
    sudo python tests/envs_package/shell/limits.py --attempts 10 --user name [--delegate]      # as another user, with a cgroup or without

An attempt gives the command of a way, waits, gives another one and submits. Watched are private files of the user, with their
permissions, before and after each attempt, and the system's settings in all. Measured are, per way, the largest memory, processes, disk,
number of files, time and output, as a share of the limit, and how often the environment raised an error. Memory is
measured by the kernel: by the cgroup of the sandbox, or, as root with `--user`, by one around it that limits nothing. Prints JSON;
`--write` keeps it in limits.json. Exit code 1 if a file changed, the environment raised an error, or a limit was exceeded by over 10 %.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attack import fingerprint, watched_by_default
from ways import ways

from turnwise.util.files import write_text_atomically
from turnwise_envs.shell.box import Box
from turnwise_envs.shell.cgroup import available
from turnwise_envs.shell.env import ShellEnv
from turnwise_envs.shell.measure import members
from turnwise_envs.shell.sandbox import Done, Shell
from turnwise_envs.shell.start import Limits

RESULT = Path(__file__).with_suffix(".json")
GROUPS = Path("/sys/fs/cgroup")
PEAK = ("memory.peak", "memory.max_usage_in_bytes")
LIMITS = Limits(seconds=2.0, memory_mb=512, processes=64, disk_mb=16, printed_mb=16)
KEPT = ("memory", "processes", "disk", "disk of /tmp", "files", "seconds", "output")
peaks: dict[str, float] = {}  # of the current attempt, as shares of the limits
started = [0.0]  # when the current command was
outer: dict[str, int] = {}  # handles of the cgroup around the sandboxes: of its processes, and of its largest memory


def note(name: str, used: float, limit: float) -> None:
    peaks[name] = max(peaks.get(name, 0.0), used / limit)


def watch() -> None:
    """Measure every sandbox and every command from now on."""
    ready, close, run, end, too_much = Box.ready, Box.close, Shell.run, Shell._end, Box.too_much

    def measured_ready(self: Box) -> None:
        fresh = self.pid < 0
        ready(self)
        if fresh and self._group is None and outer:
            for pid in (self._process.pid, *(pid for pid, _ in members(self.pid))):
                os.write(outer["procs"], str(pid).encode())

    def measured_close(self: Box) -> None:
        if not self._closed and self._root >= 0:
            for name, store in zip(("disk", "disk of /tmp"), self._stores[:2], strict=True):
                status = os.fstatvfs(store)
                note(name, (status.f_blocks - status.f_bfree) * status.f_frsize, LIMITS.disk_mb << 20)
                note("files", status.f_files - status.f_ffree, LIMITS.disk_mb << 8)
            if self._group is not None:
                path = next(self._group.folder / name for name in PEAK if (self._group.folder / name).exists())
                note("memory", int(path.read_text()), LIMITS.memory_mb << 20)
        close(self)

    def measured_run(self: Shell, command: str, seconds: float | None = None, shown: int | None = None) -> Done:
        started[0] = time.monotonic()
        done = run(self, command, seconds, shown)
        note("seconds until all is gone", time.monotonic() - started[0], seconds or LIMITS.seconds)
        return done

    def measured_end(self: Shell, reason: str, output: bytes | bytearray) -> Done:
        note("output", len(output), LIMITS.printed_mb << 20)
        note("seconds", time.monotonic() - started[0], LIMITS.seconds)  # after this, all are killed
        return end(self, reason, output)

    def measured_look(self: Box) -> tuple[str, float]:
        note("processes", len(members(self.pid)), LIMITS.processes)
        return too_much(self)

    for owner, name, function in (
        (Box, "ready", measured_ready), (Box, "close", measured_close), (Box, "too_much", measured_look),
        (Shell, "run", measured_run), (Shell, "_end", measured_end),
    ):  # fmt: skip
        setattr(owner, name, function)


def private(paths: list[Path]) -> list[tuple[int, int, int, str]]:
    """Permissions, size, time and content of files."""
    found = []
    for path in paths:
        status = path.stat()
        text = path.read_text() if stat.S_ISREG(status.st_mode) else " ".join(sorted(one.name for one in path.iterdir()))
        found.append((status.st_mode, status.st_size, status.st_mtime_ns, text))
    return found


def attempt(env: ShellEnv, command: str) -> str:
    """One attempt; the error that the environment raised, if it did."""
    task = env.tasks("train", n=1)[0]
    try:
        env.reset(task)
        base = _outer_memory(reset=True)
        env.step(command)
        time.sleep(0.05 if "after the command" not in command else 0.4)
        if not env._over:
            env.step("ls >/dev/null")
        if not env._over:
            last = env.step("submit")
            if last.success:
                return "a task was solved by an attack"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if outer:
            note("memory", _outer_memory() - base, LIMITS.memory_mb << 20)
        env._leave()
    return ""


def _outer_memory(reset: bool = False) -> int:
    if not outer:
        return 0
    if reset:
        os.write(outer["peak"], b"0")
    return int(os.pread(outer["peak"], 64, 0))


def attack(attempts: int, chosen: str) -> dict[str, Any]:
    home = Path.home() / f".turnwise-attack-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    folder, victim = home / "folder", home / "victim"
    folder.mkdir(parents=True)
    paths = [victim, folder / "private", folder, home]
    for path in paths[:2]:
        path.write_text("keep\n")
        path.chmod(0o600)
    folder.chmod(0o700)
    watch()
    env = ShellEnv(families="rename", levels=1, seconds=LIMITS.seconds, memory_mb=LIMITS.memory_mb, processes=LIMITS.processes,
                   disk_mb=LIMITS.disk_mb)  # fmt: skip
    attempt(env, "python3 -c 'import socket'")  # what is read for the first time is no memory of an attack
    before, wanted, results = fingerprint(watched_by_default()), private(paths), {}
    for name, command in ways(str(victim), str(folder)).items():
        if chosen not in name:
            continue
        result: dict[str, Any] = {"attempts": 0, "host_files_changed": 0, "errors": 0, "largest": {}}
        for _ in range(attempts):
            peaks.clear()
            error = attempt(env, command)
            result["attempts"] += 1
            result["host_files_changed"] += sum(one != other for one, other in zip(private(paths), wanted, strict=True))
            if error:
                result["errors"] += 1
                result["error"] = error
            for what, share in peaks.items():
                result["largest"][what] = round(max(share, result["largest"].get(what, 0.0)), 3)
        results[name] = result
        print(f"{name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    env.close()
    after = fingerprint(watched_by_default())
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    shutil.rmtree(home, ignore_errors=True)
    measured = sorted({what for one in results.values() for what in one["largest"]})
    largest = {what: max(one["largest"].get(what, 0.0) for one in results.values()) for what in measured}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores",
        "bubblewrap": subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip(),
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "cgroup": available(),
        "limits": {name: getattr(LIMITS, name) for name in ("seconds", "memory_mb", "processes", "disk_mb", "printed_mb")},
        "attempts": sum(one["attempts"] for one in results.values()),
        "host_files_changed": sum(one["host_files_changed"] for one in results.values()) + len(changed),
        "errors": sum(one["errors"] for one in results.values()),
        "largest": largest,
        "changed": changed[:20],
        "ways": results,
    }  # fmt: skip


def as_user(name: str, delegate: bool, python: str, words: list[str]) -> dict[str, Any]:
    """What this script finds as another user: with a cgroup of theirs, or inside one that only measures."""
    who = pwd.getpwnam(name)
    own = next(line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if "memory" in line.split(":")[1])
    group = GROUPS / "memory" / own.lstrip("/") / f"attack-{os.getpid()}"
    group.mkdir()
    handles = {}
    try:
        if delegate:
            for path in (group, group / "cgroup.procs"):
                os.chown(path, who.pw_uid, who.pw_gid)
        else:
            handles = {"procs": os.open(group / "cgroup.procs", os.O_WRONLY), "peak": os.open(group / PEAK[1], os.O_RDWR)}
        outer_words = [f"{key}={handle}" for key, handle in handles.items()]
        done = subprocess.run(
            [python, __file__, *words, *(["--outer", *outer_words] if outer_words else [])],
            user=who.pw_uid, group=who.pw_gid, extra_groups=(), pass_fds=tuple(handles.values()),
            env={"HOME": who.pw_dir, "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=(lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None) if delegate else None,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        return dict(json.loads(done.stdout))
    finally:
        for left in group.glob("turnwise-*"):
            with suppress(OSError):
                left.rmdir()
        with suppress(OSError):
            group.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attempts", type=int, default=10, help="per way")
    parser.add_argument("--only", default="", help="ways whose name has this in it")
    parser.add_argument("--user", help="as this user; this process must be root")
    parser.add_argument("--delegate", action="store_true", help="and give them a cgroup")
    parser.add_argument("--python", default=sys.executable, help="a Python that this user may run")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.name}")
    parser.add_argument("--outer", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.user:
        return report(as_user(args.user, args.delegate, args.python, ["--attempts", str(args.attempts), "--only", args.only]), args.write)
    outer.update({key: int(value) for key, _, value in (word.partition("=") for word in args.outer)})
    return report(attack(args.attempts, args.only), args.write)


def report(result: dict[str, Any], write: bool) -> int:
    print(json.dumps(result, indent=1))
    if write:
        whole = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        situation = f"{result['user']}, {'with' if result['cgroup'] else 'without'} a cgroup"
        text = json.dumps(whole | {situation: result}, indent=1)
        write_text_atomically(RESULT, re.sub(r"\n {4,}", " ", text) + "\n")  # a way on a line
    largest = max(share for name, share in result["largest"].items() if name in KEPT)
    return bool(result["host_files_changed"] or result["errors"] or largest > 1.1)


if __name__ == "__main__":
    sys.exit(main())
