"""The arena's shell in memory answers as bash and GNU's programs do."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

CODE = Path(__file__).parents[2] / "docs" / "results" / "arena" / "recipes" / "shell.py"
spec = importlib.util.spec_from_file_location("arena_shell", CODE)
assert spec is not None and spec.loader is not None
shell = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shell)

FOLDERS, FILES, WORDS = ("blue", "red"), ("bell", "coin", "nail"), ("plum", "apple")
ROUNDS, COMMANDS, MARK = 40, 25, "-- done --"
VERSION = subprocess.run(["ls", "--version"], capture_output=True, text=True).stdout if shutil.which("bash") else ""
EXACT = "(GNU coreutils) 9.1\n"  # other versions word a few errors in other ways: there only what is printed without one is compared


def path(rng: Random) -> str:
    name = rng.choice((*FOLDERS, *FOLDERS, *FILES, ".", ".."))
    return name if rng.random() < 0.6 else f"{rng.choice((*FOLDERS, '..'))}/{rng.choice((*FOLDERS, *FILES))}"


def command(rng: Random) -> str:
    name = rng.choice(("ls", "cd", "cd", "cat", "mkdir", "rm", "mv", "mv", "mv", "cp", "cp", "grep", "odd"))
    if name == "grep":
        return f"grep -rl {rng.choice(WORDS)}"
    if name == "odd":
        return rng.choice(
            ("ls", "cd", "cat", "rm", "mkdir", "mv", "cp", "cp red", "mv nail", "cd red blue", "plum", "red/coin", "blue/red")
        )
    return " ".join([name, *(path(rng) for _ in range(2 if name in ("mv", "cp") else 1))])


def played(rng: Random, tree: dict[str, str | None]) -> tuple[Any, list[str], list[str]]:
    """Random commands, the answers of the shell in memory, and that shell. Commands that lead out of the folder, or move one that the
    shell is in, are left out: there it answers in its own way."""
    ours, commands, answers = shell.Shell(tree), [], []
    while len(commands) < COMMANDS:
        before = dict(ours.tree), ours.cwd
        given = command(rng)
        answer = ours.run(given)
        if answer.endswith((shell.BUSY, shell.DENIED)):
            ours = shell.Shell(*before)
            continue
        commands.append(given)
        answers.append(answer)
    return ours, commands, answers


def in_bash(commands: list[str], top: Path) -> list[str]:
    """What bash prints for each of them. `grep -r` answers in the order of the disk, and a script's errors have the number of a line. No
    command goes up by more than one folder, and none is run outside of `top`: even where both shells differ, nothing leaves its parent."""
    assert not any(given.count("..") > 2 or "../.." in given for given in commands)
    script = "\n".join(f"[[ $PWD/ == $TOP/* ]] || exit\n{given}\necho '{MARK}'" for given in commands)
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(top), "TOP": str(top)}
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        cwd=top, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20,
    )  # fmt: skip
    answers = [answer.strip("\n") for answer in done.stdout.split(f"{MARK}\n")[:-1]]
    plain = [re.sub(r"^bash: line \d+: ", "bash: ", answer) for answer in answers]
    return ["\n".join(sorted(a.split("\n"))) if given.startswith("grep") else a for given, a in zip(commands, plain, strict=True)]


def on_disk(top: Path) -> dict[str, str | None]:
    return {str(p.relative_to(top)): p.read_text().strip() if p.is_file() else None for p in sorted(top.rglob("*"))}


def laid_out(tree: dict[str, str | None], top: Path) -> None:
    top.mkdir(parents=True)
    for name, text in sorted(tree.items(), key=lambda entry: entry[0].count("/")):
        if text is None:
            (top / name).mkdir()
    for name, text in tree.items():
        if text is not None:
            (top / name).write_text(f"{text}\n")


def drawn(rng: Random) -> dict[str, str | None]:
    tree: dict[str, str | None] = {"red": None} | ({"blue": None} if rng.random() < 0.7 else {})
    tree |= {"blue/red": None, "blue/red/nail": "plum"} if "blue" in tree and rng.random() < 0.5 else {}
    return tree | {f"{rng.choice(('red/', ''))}{name}": rng.choice(WORDS) for name in FILES if rng.random() < 0.7}


@pytest.mark.skipif("GNU coreutils" not in VERSION, reason="there is no bash, or its programs are not GNU's")
def test_random_commands_print_and_do_what_they_do_in_bash(tmp_path: Path) -> None:
    seen: set[str] = set()
    for number in range(ROUNDS):
        rng, top = Random(f"arena shell {number}"), tmp_path.resolve() / str(number) / "top"
        tree = drawn(rng)
        laid_out(tree, top)
        ours, commands, answers = played(rng, tree)
        theirs = in_bash(commands, top)
        for turn, (mine, real) in enumerate(zip(answers, theirs, strict=True)):
            same = mine == real or (EXACT not in VERSION and ": " in mine and ": " in real)
            assert same, f"round {number}: {tree}, then {commands[: turn + 1]}"
        assert on_disk(top) == ours.tree, f"round {number}: {tree}, then {commands}"
        seen.update(shell.short(answer) for answer in answers)
    assert {"No such file or directory", "Not a directory", "Is a directory", "File exists", "Directory not empty"} <= seen


def test_the_shell_stays_in_its_folder() -> None:
    inside = shell.Shell({"red": None, "red/nail": "plum"}, "red")
    for given in ("cd ../..", "cat ../../nail", "mv nail ../..", "cp nail ../../nail"):
        assert inside.run(given).endswith(shell.DENIED)
    assert inside.run("mv ../red ../blue").endswith(shell.BUSY)
    assert inside.tree == {"red": None, "red/nail": "plum"} and inside.cwd == "red"


def test_an_error_is_shown_without_what_stands_before_its_last_colon() -> None:
    assert shell.short("rm: cannot remove 'red': Is a directory") == "Is a directory"
    assert shell.short("mv: missing file operand\nTry 'mv --help' for more information.") == "missing file operand"
    assert shell.short("blue/nail\nred/bell") == "blue/nail red/bell"


def test_a_lost_file_is_not_won_back_and_the_expert_wins() -> None:
    env = shell.SmallShell()
    for task in env.tasks("valid", 30):
        seen, turns = env.reset(task), 0
        assert seen.text.startswith(task.data["goal"])
        while not (last := env.step(env.expert_action())).done:
            turns += 1
        assert last.success and turns < env.max_turns
        env.reset(task)
        env.step(f"rm {next(path for path, text in env.shell.tree.items() if text is not None and text != task.data['word'])}")
        while not (last := env.step(env.expert_action())).done:
            pass
        assert not last.success
