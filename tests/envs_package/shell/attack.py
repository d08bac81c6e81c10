"""Random and hostile commands in the shell environment: does any file outside the sandbox change?

    python tests/envs_package/shell/attack.py --commands 100000

Commands are random texts, random words of a shell, and attacks with random targets. Before and after, every file of a set of folders
outside is compared by name, size, time and content: a canary folder with open permissions, the folders of the system's settings and
programs, and the plain files and keys of the user's home. This process adopts what the sandboxes leave behind, so that no process can get
away unseen. Prints JSON; `--write` keeps it next to this file. Exit code 1 if anything changed or a process is left.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

from turnwise.util.files import write_text_atomically
from turnwise_envs.shell.sandbox import Shell
from turnwise_envs.shell.spares import leave, take
from turnwise_envs.shell.start import Limits
from turnwise_envs.shell.tree import file, folder

RESULT = Path(__file__).with_suffix(".json")
PR_SET_CHILD_SUBREAPER = 36

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
    """The processes that this one has started or adopted and that are still there; those that ended are collected."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            return []
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{one}/cmdline").read_text().replace("\0", " ").strip() for one in children]


def attack(commands: int, seed: int, canary: str) -> dict[str, int]:
    """Runs the commands, up to 200 per sandbox. `ended`: how many of them ended their sandbox."""
    rng, targets = random.Random(seed), [canary, "/etc", "/usr/bin", str(Path.home()), "/work", "/tmp", "/"]
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


def watched_by_default() -> list[str]:
    home = Path.home()
    return ["/etc", "/usr/bin", "/usr/sbin", "/usr/local", str(home / ".ssh"), *sorted(str(one) for one in home.iterdir() if one.is_file())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commands", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watch", nargs="*", help="files and folders outside, instead of the usual ones")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.name}")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    canary = Path(tempfile.mkdtemp(prefix="canary"))
    canary.chmod(0o777)
    (canary / "canary").write_text("alive\n")
    (canary / "canary").chmod(0o666)
    watched = [str(canary), *(watched_by_default() if args.watch is None else args.watch)]
    before, start = fingerprint(watched), time.monotonic()
    counts = attack(args.commands, args.seed, str(canary))
    after, processes = fingerprint(watched), left()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}",
        "bubblewrap": subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip(),
        "seed": args.seed,
        **counts,
        "files_watched": len(before),
        "files_changed": len(changed),
        "processes_left": len(processes),
        "seconds": round(time.monotonic() - start),
        "changed": changed[:20],
        "left": processes[:20],
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.write:
        write_text_atomically(RESULT, text)
    (canary / "canary").unlink(missing_ok=True)
    canary.rmdir()
    return bool(changed or processes)


if __name__ == "__main__":
    sys.exit(main())
