"""Attacks on the sandbox of the shell environment: does a file of the host change, is a limit exceeded, is a process left?

    python tests/envs_package/shell/attack.py --commands 100000        # random and hostile commands
    python tests/envs_package/shell/attack.py --ways 10                # every way of ways.py, ten attempts each

Commands are random texts, random words of a shell, and attacks with random targets. An attempt of a way gives its command, waits, gives
another one and submits. Before and after, every file of a set of folders outside is compared by name, size, time and content: a canary
folder with open permissions and a private file in it, the folders of the system's settings and programs, and the plain files and keys of
the user's home. Measured are, per way, the largest memory (by the cgroup of the sandbox), processes, disk, number of files, time and
output, as a share of the limit. This process adopts what the sandboxes leave behind, so that no process can get away unseen. Prints JSON;
`--write` keeps it next to this file. Exit code 1 if a file changed, a process is left, the environment raised an error, or a limit was
exceeded by over 10 %.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ways import ways

from turnwise.util.files import write_text_atomically
from turnwise_envs.shell.box import Box
from turnwise_envs.shell.cgroup import available
from turnwise_envs.shell.env import ShellEnv
from turnwise_envs.shell.measure import members
from turnwise_envs.shell.sandbox import Done, Shell
from turnwise_envs.shell.spares import leave, take
from turnwise_envs.shell.start import Limits
from turnwise_envs.shell.tree import file, folder

RESULTS = {"commands": Path(__file__).with_name("attack.json"), "ways": Path(__file__).with_name("limits.json")}
PR_SET_CHILD_SUBREAPER = 36
PEAK = ("memory.peak", "memory.max_usage_in_bytes")
LIMITS = Limits(seconds=2.0, memory_mb=512, processes=64, disk_mb=16, printed_mb=16)
MEASURED = ("memory", "processes", "disk", "disk of /tmp", "files", "seconds", "output")
peaks: dict[str, float] = {}  # of the current attempt, as shares of the limits
started = [0.0]  # when the current command was

WORDS = tuple(
    """
ls cat rm -rf mv cp ln -s chmod 777 / .. ../.. ~ /etc/passwd /usr/bin/env /proc/self/root /proc/1/root /dev/sda /tmp > >> < | && ; &
$( ) ` * ? $HOME $PATH eval exec source kill -9 -1 1 $$ dd if=/dev/zero of= find -delete -exec sh -c sed -i awk tee touch mkdir umask
mount umount unshare -Ur chroot nsenter su sudo passwd useradd curl wget nc ssh git init tar xf mkfifo ulimit -u unlimited trap set -e
""".replace("\n", " ")
    .strip()
    .split(" ")
)
ATTACKS = """
rm -rf --no-preserve-root {path}
echo hacked > {path}/hacked
touch {path}/x; chmod -R 777 {path}
cp -r / {path}/
ln -s {path} l; echo x > l/x; rm -rf l/*
cd /proc/1/root{path} && touch x
cd /proc/self/root/../..{path} && touch x
unshare -Ur sh -c 'mount --bind {path} /work && touch /work/x'
nsenter -t 1 -m touch {path}/x
mount -o remount,rw / && touch {path}/x
mount -t proc none /tmp; mknod /tmp/d b 254 0; cat /tmp/d | head -c 10
tar cf - {path} | tar xf - -C /usr
exec 3<>/dev/tcp/127.0.0.1/22; cat <&3
for i in /proc/[0-9]*; do ls -l $i/fd; echo x > $i/root{path}/x; done
sed -i s/a/b/ {path}/canary
find {path} -type f -delete
echo 1 > /proc/sys/kernel/panic; echo x > /sys/kernel/x
chroot {path} touch x
umount /usr; umount -l /
kill -9 -1
exit
ulimit -u 100000; ulimit -v unlimited; ulimit -a
echo '{path}/x' | xargs touch
python3 -c 'open("{path}/x","w")'; perl -e 'open(F,">{path}/x")'
""".strip().splitlines()


def command(rng: random.Random, targets: list[str]) -> str:
    """One random command."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(ATTACKS).replace("{path}", rng.choice(targets))
    if kind < 0.8:
        return " ".join(rng.choice([*WORDS, *targets]) for _ in range(rng.randint(1, 8)))
    return "".join(chr(rng.choice([rng.randrange(1, 128), rng.randrange(128, 0x3000)])) for _ in range(rng.randint(1, 60)))


def fingerprint(watched: list[str]) -> dict[str, str]:
    """Every watched file, and every file below a watched folder: size, time and permissions; content of small ones."""
    found = {}
    for top in watched:
        for path in [Path(top), *(Path(where) / name for where, names, files in os.walk(top) for name in [*names, *files])]:
            try:
                status = path.lstat()
                content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 65536 else b""
            except OSError:
                continue
            digest = blake2b(content, digest_size=8).hexdigest()
            found[str(path)] = f"{status.st_size} {status.st_mtime_ns} {status.st_mode} {digest}"
    return found


def left() -> list[str]:
    """The processes that this one has started or adopted and that are still there after ten seconds; those that ended are collected."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            return []
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{one}/cmdline").read_text().replace("\0", " ").strip() for one in children]


def run_commands(commands: int, seed: int, canary: Path) -> dict[str, Any]:
    """Runs the commands, up to 200 per sandbox. `ended`: how many of them ended their sandbox."""
    rng, targets = random.Random(seed), [str(canary), "/etc", "/usr/bin", str(Path.home()), "/work", "/tmp", "/"]
    tree = {"a.txt": file("a\n"), "d": folder(), "d/b.sh": file("echo b\n", 0o755)}
    limits = Limits(seconds=0.2, memory_mb=256, processes=32, disk_mb=4, printed_mb=4)
    counts, shell, start = {"commands": 0, "ended": 0, "sandboxes": 0}, None, time.monotonic()
    for number in range(commands):
        if shell is None or shell.ended or number % 200 == 0:
            if shell is not None:
                shell.close()
            shell = Shell(tree, limits, box=take(limits, "bubblewrap", rng))  # started ahead, as in the environment
            counts["sandboxes"] += 1
        counts["ended"] += bool(shell.run(command(rng, targets)).ended)
        counts["commands"] += 1
        if number % 1000 == 999:
            print(f"{number + 1} commands, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if shell is not None:
        shell.close()
    leave(rng)
    return counts


def note(name: str, used: float, limit: float) -> None:
    peaks[name] = max(peaks.get(name, 0.0), used / limit)


def watch() -> None:
    """Measure every sandbox and every command from now on."""
    close, run, end, too_much = Box.close, Shell.run, Shell._end, Box.too_much

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
        (Box, "close", measured_close), (Box, "too_much", measured_look),
        (Shell, "run", measured_run), (Shell, "_end", measured_end),
    ):  # fmt: skip
        setattr(owner, name, function)


def attempt(env: ShellEnv, command: str) -> str:
    """One attempt; the error that the environment raised, if it did."""
    task = env.tasks("train", n=1)[0]
    try:
        env.reset(task)
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
        env._leave()
    return ""


def watched_by_default() -> list[str]:
    home = Path.home()
    return ["/etc", "/usr/bin", "/usr/sbin", "/usr/local", str(home / ".ssh"), *sorted(str(one) for one in home.iterdir() if one.is_file())]


def run_ways(attempts: int, chosen: str, canary: Path) -> dict[str, Any]:
    """Every way, or those whose name has `chosen` in it, as often as asked."""
    watch()
    env = ShellEnv(families="rename", levels=1, seconds=LIMITS.seconds, memory_mb=LIMITS.memory_mb, processes=LIMITS.processes,
                   disk_mb=LIMITS.disk_mb)  # fmt: skip
    results = {}
    before = fingerprint([str(canary)])
    for name, command in ways(str(canary / "own" / "private"), str(canary / "own")).items():
        if chosen not in name:
            continue
        result: dict[str, Any] = {"attempts": attempts, "host_files_changed": 0, "errors": 0, "largest": {}}
        for _ in range(attempts):
            peaks.clear()
            if error := attempt(env, command):
                result["errors"] += 1
                result["error"] = error
            result["host_files_changed"] += fingerprint([str(canary)]) != before
            for what, share in peaks.items():
                result["largest"][what] = round(max(share, result["largest"].get(what, 0.0)), 3)
        results[name] = result
        print(f"{name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    env.close()
    shares = [one["largest"] for one in results.values()]
    return {
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "cgroup": available(),
        "attempts": attempts * len(results),
        "errors": sum(one["errors"] for one in results.values()),
        "largest": {what: max(one.get(what, 0.0) for one in shares) for what in sorted({what for one in shares for what in one})},
        "ways": results,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commands", type=int, default=1000)
    parser.add_argument("--ways", type=int, help="attempts per way, instead of random commands")
    parser.add_argument("--only", default="", help="ways whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watch", nargs="*", help="files and folders outside, instead of the usual ones")
    parser.add_argument("--write", action="store_true", help="keep the result next to this file")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    canary = Path(tempfile.mkdtemp(prefix="canary"))
    canary.chmod(0o777)
    (canary / "own").mkdir(mode=0o700)
    for name, mode in (("canary", 0o666), ("own/private", 0o600)):
        (canary / name).write_text("alive\n")
        (canary / name).chmod(mode)
    watched = [str(canary), *(watched_by_default() if args.watch is None else args.watch)]
    before, start = fingerprint(watched), time.monotonic()
    kind = "commands" if args.ways is None else "ways"
    attacked = run_commands(args.commands, args.seed, canary) if kind == "commands" else run_ways(args.ways, args.only, canary)
    after, processes = fingerprint(watched), left()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}",
        "bubblewrap": subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip(),
        "seed": args.seed,
        "files_watched": len(before),
        "files_changed": len(changed),
        "processes_left": len(processes),
        "seconds": round(time.monotonic() - start),
        "changed": changed[:20],
        "left": processes[:20],
        **attacked,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.write:
        write_text_atomically(RESULTS[kind], text)
    shutil.rmtree(canary)
    exceeded = any(attacked.get("largest", {}).get(what, 0.0) > 1.1 for what in MEASURED)
    return bool(changed or processes or attacked.get("errors") or exceeded)


if __name__ == "__main__":
    sys.exit(main())
