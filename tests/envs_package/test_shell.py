"""The shell environment: every task can be solved and is not solved by itself, and nothing leaves the sandbox."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import gone, orphans

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Transition
from turnwise.envs.registry import describe
from turnwise.util.errors import TurnwiseError
from turnwise_envs.shell import spares
from turnwise_envs.shell.box import Box
from turnwise_envs.shell.calls import ARCHITECTURES, call_filter
from turnwise_envs.shell.env import ShellEnv, _kept
from turnwise_envs.shell.families import known_families
from turnwise_envs.shell.own import scene_of
from turnwise_envs.shell.sandbox import Shell
from turnwise_envs.shell.start import Limits, present
from turnwise_envs.shell.tree import Entry, TooLarge, as_json, digest, file, folder, from_json, link, read_tree, write_tree

ways = runpy.run_path(str(Path(__file__).parent / "shell" / "ways.py"))["ways"]  # a script's folder, not a package


def works() -> bool:
    """Whether this machine can make sandboxes: bubblewrap is installed and user namespaces are allowed."""
    if shutil.which("bwrap") is None:
        return False
    tried = subprocess.run(["bwrap", "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "true"], capture_output=True, check=False)
    return tried.returncode == 0


sandboxed = pytest.mark.skipif(not works(), reason="needs bubblewrap, and a machine that allows user namespaces")


@pytest.fixture
def env() -> Iterator[ShellEnv]:
    made = ShellEnv(seconds=5)
    yield made
    made.close()


def play(env: ShellEnv, task: Task, commands: list[str]) -> Transition:
    env.reset(task)
    return [env.step(command) for command in commands][-1]


@sandboxed
@pytest.mark.parametrize("name", sorted(known_families))
def test_the_expert_solves_every_family_at_every_level_and_printing_solves_none(env: ShellEnv, name: str) -> None:
    for task in ShellEnv(families=name).tasks("valid", n=3):
        assert play(env, task, env.expert(task)).success, task.id
        wanted = scene_of(task).goal
        assert not play(env, task, [f"echo {wanted!r}; find . -type f -not -path './.git/*' -exec cat {{}} +", "submit"]).success, task.id


@sandboxed
@pytest.mark.parametrize("name", ["follow", "deliver", "weed", "swap", "setting"])
def test_an_errand_takes_all_of_its_steps(env: ShellEnv, name: str) -> None:
    """Without the last command that changes files, or with another name in it, the task is not solved."""
    for task in ShellEnv(families=name).tasks("valid", n=3):
        *steps, last, submit = env.expert(task)
        assert not play(env, task, [*steps, submit]).success, task.id
        assert not play(env, task, [*steps, re.sub(r"\w+(?=\W*\w*$)", "other", last), submit]).success, task.id


@sandboxed
def test_the_shell_keeps_folder_variables_and_functions_and_shows_exit_codes(env: ShellEnv) -> None:
    env.reset(env.tasks(n=1)[0])
    assert env.shows == "terminal", "for the pages"
    env.step("mkdir here && cd here; x=5; f() { echo f$x; }")
    assert env.step("f; pwd").observation.text == "f5\n/work/here\n/work/here$"
    assert env.step("false").observation.text == "[exit code 1]\n/work/here$"
    assert env.step("cat").observation.text == "[no output]\n/work/here$", "a command that reads its input must not wait for it"
    assert "syntax error" in env.step("if").observation.text
    assert env.step("echo ok").observation.text == "ok\n/work/here$"


HOSTILE = {
    "forks": (":(){ :|:& };: ; sleep 30", "took longer|processes"),
    "sleeps": ("sleep 100", "took longer than 0.5 seconds"),
    "prints without end": ("yes", "printed more than"),
    "prints a gigabyte": ("head -c 1G /dev/zero | tr '\\0' x", "printed more than"),
    "ends its shell": ("exit 3", "the shell exited"),
    "kills its shell": ("kill -9 $$", "the shell exited"),
    "kills everything": ("kill -9 -1; kill -9 1; echo still here", ""),
    "fills the disk": ("head -c 100M /dev/zero > a; for i in $(seq 40); do head -c 1M /dev/zero > b$i; done; du -sm . | cut -f1", ""),
    "takes memory": ("x=$(head -c 900M /dev/zero | tr '\\0' x); echo ${#x}", ""),
    "reads the home folder": ("cat ~root/.bashrc /root/* /home/*/* /etc/shadow; ls / ", ""),
    "writes outside": ("touch /x /usr/x /etc/x /proc/x /dev/x; ls /x /usr/x /etc/x /dev/x; mount -t tmpfs none /usr", ""),
    "waits for a pipe": ("mkfifo p; cat p", "took longer"),
    "leaves the sandbox by a namespace": ("unshare -Ur bash -c 'mount -t tmpfs none /usr && echo mounted'", ""),
}


@sandboxed
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_command_ends_with_a_reason_and_the_attempt_goes_on(what: str) -> None:
    command, reason = HOSTILE[what]
    env = ShellEnv(seconds=0.5 if "took longer" in reason else 1 if what == "takes memory" else 10, memory_mb=300)
    before = sandboxes()
    env.reset(env.tasks(n=1)[0])
    step = env.step(command)
    text = step.observation.text
    assert not step.done
    if reason:
        assert re.search(reason, str(step.info["limit"])), (text, step.info)
    assert "mounted" not in text and "root:$" not in text
    if what == "writes outside":
        assert "cannot access" in text
    if what == "reads the home folder":
        assert {"home", "root", "srv", "mnt"}.isdisjoint(text.split())
    if what == "fills the disk":
        assert int(text.splitlines()[-2]) <= 17
    if what == "takes memory":
        assert "900" not in text
    assert env._shell is not None
    env._shell.limits = Limits(seconds=30)
    assert env.step("echo alive").observation.text.startswith("alive")
    env.close()
    deadline = time.monotonic() + 20
    while sandboxes() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sandboxes() <= before, "a process of the sandbox is left"


@sandboxed
def test_neither_a_server_of_the_machine_nor_a_file_of_the_user_can_be_reached(env: ShellEnv, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep-this-secret\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        env.reset(env.tasks(n=1)[0])
        files = f"cat {tmp_path}/secret; ls {Path.home()}; ls /proc/1/root{tmp_path}"
        text = env.step(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo through; {files}").observation.text
        with pytest.raises(BlockingIOError):
            server.accept()
    assert "through" not in text and "keep-this-secret" not in text
    assert "Connection refused" in text and "No such file or directory" in text


@sandboxed
def test_nothing_of_an_attempt_is_left_for_the_next_one_whose_sandbox_was_started_ahead() -> None:
    env = ShellEnv(seconds=7)
    task = env.tasks(n=1)[0]
    fresh = env.reset(task)
    assert env._shell is not None
    first, (second, third, fourth) = env._shell._box, waiting(env)
    env.step("touch /work/left /tmp/left /dev/shm/left; export left=1; sleep 1000 & cd /tmp")
    second._process.kill()
    second._process.wait()
    again = env.reset(task)
    assert env._shell._box is third, "a sandbox that died while it waited is not used"
    assert gone(first.pid) and (again.text, again.anchor) == (fresh.text, fresh.anchor)
    assert "left" not in env.step("ls -a /work /tmp /dev/shm; echo $left; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; jobs").observation.text
    other = ShellEnv(seconds=7)
    other.reset(task)
    assert other._shell is not None and other._shell._box is fourth, "environments with the same limits share those that wait"
    env.close()
    left = waiting(other)
    assert len(left) == 3 and all(box.alive() for box in left)
    other.close()
    assert not any(box.alive() for box in left) and other._shell is None


def waiting(env: ShellEnv) -> list[Box]:
    """The sandboxes that were started ahead for an environment."""
    return [box for (limits, *_), boxes in spares._waiting.items() if limits == env.limits for box in boxes]


@sandboxed
def test_sandboxes_end_with_a_process_that_is_killed() -> None:
    ahead = "*(box.ready() or box.pid for boxes in sys.modules['turnwise_envs.shell.spares']._waiting.values() for box in boxes)"
    inside = orphans("shell", f"env._shell._box.pid, {ahead}")
    assert len(inside) >= 4 and gone(*inside)


@sandboxed
def test_a_repository_has_the_same_state_every_time_and_its_commits_the_same_names() -> None:
    seen = []
    for _ in range(2):
        _kept.clear()
        env = ShellEnv(families="git_commit", levels=1)
        task = env.tasks(n=1)[0]
        start = env.reset(task)
        staged = env.step("git add -A; echo")
        done = env.step("git commit -m now; git log --format=%H")
        seen.append([start.anchor, staged.observation.anchor, done.observation.text, done.observation.anchor])
        env.close()
    assert seen[0] == seen[1] and len({*seen[0]}) == 4


@sandboxed
def test_a_command_that_forges_the_end_of_its_output_breaks_nothing() -> None:
    shell = Shell({}, Limits(seconds=1))
    done = shell.run("""trap 'set -- $BASH_COMMAND; echo; echo "$5 x y"; echo; echo "$5 99999 y"' DEBUG""")
    assert "99999" in done.output and "alive" in shell.run("echo alive").output
    shell.close()


gvisor = pytest.mark.skipif(not works() or not present("gvisor"), reason="needs bubblewrap and gVisor (runsc)")


@gvisor
def test_gvisor_runs_the_same_tasks_and_keeps_what_is_outside_apart() -> None:
    env = ShellEnv(sandbox="gvisor", families="rename", levels=1, seconds=5)
    task = env.tasks(n=1)[0]
    assert play(env, task, env.expert(task)).success
    env.reset(task)
    text = env.step(
        "dmesg | head -1; ls / ~root /box /runsc; echo x > /usr/x; cat < /dev/tcp/127.0.0.1/80; echo inside > new"
    ).observation.text
    assert "gVisor" in text and "Read-only" in text and "refused" in text and "No such file" in text
    assert {"home", "root", "srv", "mnt", "boot", "runsc"}.isdisjoint(text.split())
    assert env._shell is not None and env._shell.tree()["new"].text == "inside\n"
    pid = env._shell._box.pid
    env.close()
    assert gone(pid)


def test_without_gvisor_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TurnwiseError, match=r"runsc is missing: install gVisor .*apt-get install runsc"):
        ShellEnv(sandbox="gvisor")


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield root
    finally:
        os.close(root)


def as_user(function: Callable[[], None]) -> None:
    """Do it as an ordinary user: in another process if this one is root's."""
    if os.geteuid() != 0:
        function()
        return
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own files in /proc are its own again
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "see the traceback above"


def open_to_all(folder: Path) -> None:
    """Whoever runs the sandbox must be able to find what is in this folder."""
    for parent in (folder, *folder.parents[:3]):
        with suppress(PermissionError):
            parent.chmod(parent.stat().st_mode | 0o055)


def private_file(folder: Path) -> Path:
    """A file of an ordinary user's, in a folder that they can reach."""
    open_to_all(folder)
    (folder / "own").mkdir()
    victim = folder / "own" / "private"
    victim.write_text("keep")
    victim.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(folder / "own", 65534, 65534)
        os.chown(victim, 65534, 65534)
    return victim


def test_reading_a_folder_changes_nothing_that_a_link_in_it_leads_to(tmp_path: Path) -> None:
    """A process exchanges an unreadable file for a link to a private file all the time, while the folder is read."""
    victim = private_file(tmp_path)

    def race() -> None:
        inside = victim.parent / "inside"
        inside.mkdir()
        (inside / "a").write_text("x")
        (inside / "a").chmod(0o044)
        (inside / "b").symlink_to(victim)
        libc, number = ctypes.CDLL(None), {"x86_64": 316, "aarch64": 276}.get(platform.machine(), 276)
        if (other := os.fork()) == 0:
            while True:  # renameat2 with RENAME_EXCHANGE
                libc.syscall(number, -100, bytes(inside / "a"), -100, bytes(inside / "b"), 2)
        try:
            with opened(inside) as root:
                for _ in range(3000):
                    read_tree(root)
                    assert victim.stat().st_mode & 0o777 == 0o600
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)

    as_user(race)
    assert victim.read_text() == "keep"


@sandboxed
def test_whatever_an_agent_does_to_its_files_is_an_outcome_and_no_fault_of_the_environment(tmp_path: Path) -> None:
    victim = private_file(tmp_path)
    commands = ways(str(victim), str(victim.parent))
    chosen = [commands[name] for name in commands if name.startswith(("race", "trap")) or name.endswith(("that just fit", "hard link"))]

    def play_all() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        env = ShellEnv(families="rename", levels=1, seconds=5)
        for command in chosen:
            env.reset(env.tasks(n=1)[0])
            step = env.step(command)
            for other in ("ls", "submit"):
                step = step if step.done else env.step(other)
            assert step.done and not step.success, command
            assert victim.stat().st_mode & 0o777 == 0o600 and victim.read_text() == "keep", command
        env.close()

    as_user(play_all)


REFUSED = {
    "memfd": "os.memfd_create('x')", "System V memory": "c(29, 194, 0, 4096, 0o1666)", "System V messages": "c(68, 186, 0, 0o1666)",
    "System V semaphores": "c(64, 190, 0, 1, 0o1666)", "message queues": "c(240, 180, b'q', 0o102, 0o600, None)",
    "shared memory without a file": "mmap.mmap(-1, 4096)", "a device of zeros": "mmap.mmap(os.open('/dev/zero', 2), 4096)",
    "namespaces": "c(272, 97, 0x10000000)", "keys": "c(250, 219, 0, -3, 1)", "rings": "c(425, 425, 8, bytes(120))",
    "faults handled by programs": "c(323, 282, 1)", "programs in the kernel": "c(321, 280, 0, bytes(128), 64)",
    "watched files": "c(294, 26, 0)", "pages given to pipes": "c(278, 75, 1, None, 0, 0)", "sockets to the kernel": "socket.socket(38, 5)",
    "larger pipes": "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)", "mounts": "c(165, 40, b't', b'/tmp', b'tmpfs', 0, None)",
}  # fmt: skip
needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python in /usr/bin")
needs_filter = pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="system calls are not filtered on this machine")


@sandboxed
@needs_python
@needs_filter
def test_system_calls_that_take_uncounted_memory_or_reach_the_kernel_are_refused() -> None:
    head = (
        "import ctypes, fcntl, mmap, os, platform, socket\n"
        "def c(x, a, *v):\n"
        " if ctypes.CDLL(None, use_errno=True).syscall(a if platform.machine() == 'aarch64' else x, *v) < 0:\n"
        "  raise OSError(ctypes.get_errno(), '')\n"
    )
    tries = "".join(
        f"try: {text}; print({name!r}, 'was possible')\nexcept OSError as e: print({name!r}, e.errno)\n" for name, text in REFUSED.items()
    )
    shell = Shell({"try.py": file(head + tries)}, Limits(seconds=30))
    lines = dict(line.rsplit(" ", 1) for line in shell.run("python3 try.py").output.splitlines())
    shell.close()
    wanted = dict.fromkeys(REFUSED, "1") | {"a device of zeros": "19", "sockets to the kernel": "97"}
    assert lines == wanted


def decision(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would answer, by the manual of classic BPF: 0x7FFF0000 allows, 0x00050000 | n is the error n."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, *(0,) * (6 - len(arguments))))
    steps, at, value = [struct.unpack_from("<HBBI", program, start) for start in range(0, len(program), 8)], 0, 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            value = struct.unpack_from("<I", data, k)[0]
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: value & k != 0}[code]
            at += yes if holds else no


@pytest.mark.parametrize(
    ("machine", "architecture", "calls"),
    [("x86_64", 0xC000003E, {"read": 0, "clone": 56, "mmap": 9, "fcntl": 72, "socket": 41, "setsockopt": 54, "memfd": 319, "clone3": 435}),
     ("aarch64", 0xC00000B7, {"read": 63, "clone": 220, "mmap": 222, "fcntl": 25, "socket": 198, "setsockopt": 208, "memfd": 279,
                              "clone3": 435})],
)  # fmt: skip
def test_the_filter_of_system_calls_decides_by_number_and_arguments(machine: str, architecture: int, calls: dict[str, int]) -> None:
    program, allowed, refused = call_filter(grouped=True, machine=machine), 0x7FFF0000, 0x00050001

    def ask(name: str, *arguments: int) -> int:
        return decision(program, architecture, calls[name], *arguments)

    assert ask("read") == allowed and ask("memfd") == refused and ask("clone3") == 0x00050026
    assert ask("clone", 17) == allowed and ask("clone", 0x10000011) == refused and ask("clone", 0x003D0F00) == allowed
    assert ask("mmap", 0, 1, 3, 0x22) == ask("mmap", 0, 1, 3, 0x01) == allowed and ask("mmap", 0, 1, 3, 0x21) == refused
    assert ask("socket", 1) == ask("socket", 2) == ask("socket", 10) == ask("socket", 16) == allowed and ask("socket", 17) == 0x00050061
    assert ask("setsockopt", 3, 1, 7) == ask("setsockopt", 3, 1, 8) == 0x00050000
    assert ask("setsockopt", 3, 1, 2) == ask("setsockopt", 3, 6, 7) == allowed
    assert ask("fcntl", 3, 1031) == refused and ask("fcntl", 3, 6) == ask("fcntl", 3, 1) == allowed
    assert decision(call_filter(grouped=False, machine=machine), architecture, calls["fcntl"], 3, 6) == 0x00050000
    assert decision(program, 0x40000003, calls["read"]) == 0x00050026, "programs of another architecture"
    assert decision(program, architecture, 0x40000000 + calls["read"]) == 0x00050026
    assert call_filter(grouped=True, machine="unknown") == b""


@sandboxed
def test_files_without_content_have_a_limit_too_and_nothing_of_the_host_is_in_the_environment() -> None:
    shell = Shell({}, Limits(disk_mb=1, seconds=30))
    assert not re.sub(r"_=\S*", "", shell.run("tr '\\0' '\\n' < /proc/1/environ").output)
    for folder_name in ("/work", "/tmp", "/dev/shm"):
        done = shell.run(f"cd {folder_name}; for i in $(seq 400); do : > f$i; done 2>&1 | tail -1; ls | wc -l")
        assert "No space left" in done.output and int(done.output.split()[-1]) < 256, folder_name
    shell.close()


@sandboxed
@needs_python
def test_processes_in_the_background_stop_between_two_commands_and_go_on_with_the_next() -> None:
    shell = Shell({}, Limits(seconds=30))
    shell.run("(while :; do echo x >> log; done) & sleep 100 & kill -STOP $!; sleep 0.2")
    first = shell.tree()
    time.sleep(0.2)
    assert shell.tree() == first and first["log"].data
    shell.run("sleep 0.2")
    assert len(shell.tree()["log"].data or b"") > len(first["log"].data)
    assert "T" in shell.run("ps -o stat= -C sleep 2>/dev/null || grep -h State /proc/[0-9]*/status").output, (
        "what the agent stopped stays so"
    )
    shell.close()


TAKING = [
    "eight processes",
    "memfd written",
    "System V segments",
    "shared memory mostly unmapped",
    "local sockets",
    "memory taken after the command",
]


@sandboxed
@needs_python
@pytest.mark.parametrize("way", TAKING)
def test_no_way_of_taking_memory_gets_more_than_the_limit(way: str) -> None:
    shell = Shell({}, Limits(seconds=3, memory_mb=128))
    shell.run(ways("/none", "/none")[f"memory: {way}"])
    time.sleep(0.2)
    shell.run("true")
    group = shell._box._group
    peaks = [] if group is None else [group.folder / name for name in ("memory.peak", "memory.max_usage_in_bytes")]
    peak = next((int(path.read_text()) for path in peaks if path.exists()), None)
    shell.close()
    if peak is None:
        pytest.skip("no cgroup can be had here that measures it")
    assert peak <= 1.1 * (128 << 20)


def sandboxes() -> int:
    """Processes of this process that run bubblewrap."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        found += name == "bwrap" and int(rest.split()[1]) == os.getpid()
    return found


@sandboxed
def test_after_three_broken_limits_the_attempt_ends_with_the_reason() -> None:
    env = ShellEnv(seconds=0.2, breaks=2)
    env.reset(env.tasks(n=1)[0])
    assert not env.step("sleep 9").done
    last = env.step("sleep 9")
    assert last.done and not last.success and "took longer than 0.2 seconds" in last.info["reason"]
    with pytest.raises(EpisodeOver):
        env.step("ls")


@sandboxed
def test_files_survive_a_restart_of_the_shell(env: ShellEnv) -> None:
    env.reset(env.tasks(n=1)[0])
    env.step("mkdir d; echo kept > d/f; cd d")
    assert "the shell exited" in env.step("exit").observation.text
    assert env.step("cat f; pwd").observation.text.startswith("kept\n/work/d")


@sandboxed
def test_the_expert_tries_again_what_went_wrong_and_random_commands_are_repeatable(env: ShellEnv) -> None:
    task = next(task for task in env.tasks(n=30) if len(env.expert(task)) > 2)
    plan = env.expert(task)
    env.reset(task)
    made = [env.random_action(number) for number in range(40)]
    assert made == [env.random_action(number) for number in range(40)] and len(set(made)) > 10
    for command in (plan[0][:-1], "nonsense"):
        env.step(command)
        assert env.expert_action() == plan[0]
    while not (last := env.step(str(env.expert_action()))).done:
        pass
    assert last.success


@sandboxed
def test_a_snapshot_is_exact_or_there_is_none(env: ShellEnv) -> None:
    other, task = ShellEnv(), env.tasks(n=1)[0]
    for command in (
        "x=5",
        "f() { :; }",
        "sleep 100 &",
        "touch /tmp/f",
        "ln *.md *.txt h; mkfifo p",
        "set -f",
        "exec 3>f",
        "trap : USR1",
        "exit",
    ):
        env.reset(task)
        env.step("true" if command == "exit" else command)
        assert (env.snapshot() is None) == (command != "exit"), command
    env.reset(task)
    env.step("mkdir a b; echo 1 > a/one; ln -s one a/two; chmod 500 b; cd a; cd ../b; touch -d @1700000005 ../a/one")
    state = env.snapshot()
    assert state is not None
    assert other.restore(state).text == env._last
    look = "ls -lR --time-style=+%s /work; pwd; cd -; cat two; git --version; echo $_ $OLDPWD $?"
    assert other.step(look).observation == env.step(look).observation
    other.close()


@sandboxed
def test_equal_states_reached_by_different_commands_have_one_anchor() -> None:
    env = ShellEnv(anchor="state")
    task = env.tasks(n=1)[0]
    anchors = set()
    for commands in (["echo 1 > a", "echo 2 > b"], ["echo 2 > b; ls", "printf '1\n' > a"]):
        anchors.add(play(env, task, commands).observation.anchor)
    assert len(anchors) == 1
    assert play(env, task, ["echo 1 > a", "cd /tmp"]).observation.anchor not in anchors
    env.close()


def own_task(folder: Path, text: str, check: str, expert: str = "", **files: str) -> None:
    """A task of a user's own, in this folder."""
    (folder / "files").mkdir(parents=True)
    for name, content in {"task.md": text, "check.sh": check, "expert.sh": expert}.items():
        if content:
            (folder / name).write_text(content)
    for name, content in files.items():
        (folder / "files" / name).write_text(content)


@sandboxed
def test_tasks_of_the_users_own_are_checked_by_their_script_in_a_fresh_sandbox(tmp_path: Path) -> None:
    for number in range(6):
        check = f'[ "$(cat /work/out)" = {number} ]\n'
        own_task(tmp_path / f"t{number}", f"Write {number} to out.\n", check, "cp in out\n", **{"in": f"{number}\n"})
    env = ShellEnv(folder=str(tmp_path))
    train, valid = env.tasks("train"), env.tasks("valid")
    assert [task.id for task in train] == ["t0", "t1", "t2", "t3", "t5"] and [task.id for task in valid] == ["t4"]
    assert play(env, train[1], env.expert(train[1])).success
    assert not play(env, train[1], ["cat() { echo 1; }; export -f cat; exit() { :; }", "submit"]).success, "a function of the agent's shell"
    assert not play(env, train[1], ["echo 7 > out", "submit"]).success
    env.close()


LEFT = {  # what an agent may leave so that a check that does not hold seems to
    "a module in the working folder": "echo 'import os; os._exit(0)' > json.py",
    "a module for all programs": 'for d in . .local/lib/python3.*/site-packages .local/lib/python3.11/site-packages; do mkdir -p "$d"; '
    'echo \'import os; os._exit(0)\' > "$d/usercustomize.py"; cp "$d/usercustomize.py" "$d/sitecustomize.py"; done',
    "programs in the working folder": "for p in cat grep test python3 git; do printf '#!/bin/sh\\nexit 0\\n' > $p; chmod +x $p; done",
    "settings of a shell": "echo 'exit 0' | tee .bashrc .bash_profile .profile .bash_env .inputrc",
    "settings of git": "git init -q .; git config core.fsmonitor 'kill -9 $PPID; true'; git config core.pager true",
    "a program that prints the answer": "echo 'for p in /proc/[0-9]*/fd/1; do echo solved > $p; done; exit 1' > tool; chmod +x tool",
    "a program that writes the answer": "printf '#!/bin/sh\\necho right > /work/out\\nexit 1\\n' > tool; chmod +x tool",
}
CHECKS = {
    "python in its folder": 'python3 -c \'import json, sys; sys.exit(open("/work/out").read() != "right\\n")\'',
    "python in the agent's folder": 'cd /work && python3 -c \'import json, sys; sys.exit(open("out").read() != "right\\n")\'',
    "the agent's program, then its file": "/work/tool; grep -qx right /work/out",
    "git and other programs": 'git -C /work status >/dev/null; cd /work; [ "$(cat out)" = right ]',
}


@sandboxed
@needs_python
@pytest.mark.parametrize("check_name", CHECKS)
def test_nothing_that_an_agent_leaves_decides_the_check_of_an_own_task(tmp_path: Path, check_name: str) -> None:
    own_task(tmp_path / "t", "Write right to out.\n", CHECKS[check_name], out="wrong\n")
    env = ShellEnv(folder=str(tmp_path), seconds=20)
    for name, command in LEFT.items():
        assert not play(env, env.tasks()[0], [command, "submit"]).success, name
    assert play(env, env.tasks()[0], ["echo right > out", "submit"]).success
    env.close()


@sandboxed
def test_a_check_sees_the_files_but_cannot_change_them_and_its_home_is_elsewhere(tmp_path: Path) -> None:
    check = "[ -e /work/f ] && ! touch /work/x && ! echo x >> /work/f && [ $HOME = $PWD ] && [ $PWD != /work ] && touch y"
    own_task(tmp_path / "t", "Nothing.\n", check)
    env = ShellEnv(folder=str(tmp_path), seconds=20)
    assert play(env, env.tasks()[0], ["touch f", "submit"]).success
    env.close()


@sandboxed
def test_what_is_wrong_with_a_folder_of_tasks_is_said(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match="no folder"):
        ShellEnv(folder=str(tmp_path / "none")).tasks()
    with pytest.raises(TurnwiseError, match=r"has no task: a task is a folder with task\.md"):
        ShellEnv(folder=str(tmp_path)).tasks()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.md").write_text("Do it.")
    with pytest.raises(TurnwiseError, match=r"has no check\.sh"):
        ShellEnv(folder=str(tmp_path)).tasks()


def test_a_sandbox_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bubblewrap that fails, as on a machine that forbids user namespaces: nothing is run and nothing is written."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    open_to_all(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(TurnwiseError, match="the sandbox could not be made: bwrap: No permissions"):
        Shell({"x": file("y")})
    needs = {need["what"]: need for need in describe("shell")[0]["needs"]}
    assert needs["bubblewrap"]["present"] and not needs["permission for user namespaces"]["present"]


entries = st.one_of(
    st.builds(file, st.binary(max_size=40), st.sampled_from([0o600, 0o644, 0o755, 0o400])),
    st.builds(folder, st.sampled_from([0o700, 0o755])),
    st.builds(link, st.sampled_from(["/etc/passwd", "../..", "a", "nowhere"])),
)
names = st.sampled_from(["a", "b", "c d", "é", "-x", "n\nl"])


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, entries, max_size=4), st.dictionaries(names, entries, max_size=3))
def test_a_tree_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, top: dict[str, Entry], inner: dict[str, Entry]
) -> None:
    tree = {**top, "sub": folder(), **{f"sub/{name}": entry for name, entry in inner.items()}}
    with opened(tmp_path_factory.mktemp("tree")) as root:
        write_tree(root, tree)
        found = read_tree(root)
    assert found == tree and from_json(as_json(found)) == found and digest(found) == digest(tree)


def test_writing_a_folder_follows_no_link(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    with opened(inside) as root:
        for tree in ({"a": link(str(outside)), "a/x": file("x")}, {"../outside/x": file("x")}, {"b/../../outside/x": file("x")}):
            with pytest.raises((TurnwiseError, FileExistsError)):
                write_tree(root, tree)
    assert list(outside.iterdir()) == []


def test_reading_a_folder_follows_no_link_waits_for_no_pipe_and_has_bounds(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    os.mkfifo(inside / "pipe")
    (inside / "large").write_bytes(b"x" * 10_000)
    with opened(inside) as root:
        found = read_tree(root)
        assert set(found) == {"link", "up", "large"} and found["link"].data is None and found["up"].is_folder is False
        with pytest.raises(TooLarge):
            read_tree(root, largest=5000)
        with pytest.raises(TooLarge):
            read_tree(root, most=2)
