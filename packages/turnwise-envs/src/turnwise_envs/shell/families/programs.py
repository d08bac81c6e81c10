"""Tasks about programs: repair a script so that its tests pass, and version control with git."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from random import Random

from turnwise_envs.shell.scene import Probe, Scene, Wanted, family, number_of, words
from turnwise_envs.shell.tree import Entry, file


@dataclass(frozen=True)
class Script:
    """A script that folds its arguments into `total`: what it does, the right line, wrong ones, and the same in Python."""

    does: str
    right: str
    wrong: tuple[str, ...]
    start: int
    fold: Callable[[int, int], int]

    def text(self, line: str) -> str:
        return f'#!/bin/bash\ntotal={self.start}\nfor n in "$@"; do\n  {line}\ndone\necho "$total"\n'

    def result(self, numbers: list[int]) -> int:
        return reduce(self.fold, numbers, self.start)


SCRIPTS = {
    "sum.sh": Script(
        "prints the sum of its arguments",
        "total=$((total + n))",
        ("total=$((total - n))", "total=$((n + n))", "total=$n"),
        0,
        lambda total, n: total + n,
    ),
    "max.sh": Script(
        "prints the largest of its arguments",
        'if [ "$n" -gt "$total" ]; then total=$n; fi',
        ('if [ "$n" -lt "$total" ]; then total=$n; fi', 'if [ "$n" -gt 10 ]; then total=$n; fi'),
        -1000,
        max,
    ),
    "even.sh": Script(
        "prints how many of its arguments are even",
        "if [ $((n % 2)) -eq 0 ]; then total=$((total + 1)); fi",
        ("if [ $((n % 2)) -eq 1 ]; then total=$((total + 1)); fi", "if [ $((n % 3)) -eq 0 ]; then total=$((total + 1)); fi"),
        0,
        lambda total, n: total + (n % 2 == 0),
    ),
    "product.sh": Script(
        "prints the product of its arguments",
        "total=$((total * n))",
        ("total=$((total + n))", "total=$((total * total))"),
        1,
        lambda total, n: total * n,
    ),
}
TRIALS = 6  # calls of each script, of which one is in the visible test


@family
def repair(rng: Random, level: int) -> Scene:
    """Mend scripts so that their tests pass; other numbers than in the visible tests are tried."""
    chosen = rng.sample(sorted(SCRIPTS), number_of(level, 1, 2, 3))
    tree: dict[str, Entry] = {}
    tests, commands, probe, output = ["#!/bin/bash", "failed=0"], [], [], []
    for name in chosen:
        script = SCRIPTS[name]
        tree[name] = file(script.text(rng.choice(script.wrong)), 0o755)
        trials = [[rng.randint(2, 30) for _ in range(size)] for size in range(2, 2 + TRIALS)]
        visible = " ".join(map(str, trials[-1]))
        test = f'[ "$(bash {name} {visible})" = "{script.result(trials[-1])}" ]'
        tests.append(f'{test} || {{ echo "{name} {visible} is wrong"; failed=1; }}')
        probe += [f"bash /work/{name} {' '.join(map(str, trial))}" for trial in trials]
        output += [str(script.result(trial)) for trial in trials]
        commands.append(f"cat > {name} <<'END'\n{script.text(script.right)}END")
    tests.append('[ "$failed" = 0 ] && echo "all tests pass"')
    tree["test.sh"] = file("\n".join(tests) + "\n", 0o755)
    described = "; ".join(f"{name} {SCRIPTS[name].does}" for name in chosen)
    goal = f"Each of these scripts should do what is said here, and has a mistake: {described}. Mend them. bash test.sh runs some tests."
    return Scene(goal, tree, Wanted(), tuple(commands), probe=Probe("\n".join(probe), "\n".join(output)))


IDENTITY = "export GIT_AUTHOR_DATE='2024-01-01T00:00:{:02d}Z' GIT_COMMITTER_DATE='2024-01-01T00:00:{:02d}Z'"
START = "git init -q -b main --template= . && git config user.name agent && git config user.email agent@example.org"


def _commit(number: int, message: str) -> str:
    return f"{IDENTITY.format(number, number)}; git add -A && git commit -q -m '{message}'"


@family
def git_commit(rng: Random, level: int) -> Scene:
    """Commit some of the changes."""
    first, second, third = words(rng, 3)
    message = f"change {first}"
    tree = {f"{name}.txt": file(f"{name}\n") for name in (first, second, third)}
    setup = (START, _commit(0, "start"), f"echo more >> {first}.txt; echo more >> {second}.txt")
    if level == 1:
        goal = f'This folder is a git repository. Commit all changes with the message "{message}".'
        expert: tuple[str, ...] = (f"git commit -q -a -m '{message}'",)
        names = sorted([first, second])
    else:
        branch = "" if level == 2 else f" on a new branch called {third}"
        goal = (
            f'This folder is a git repository. Commit the changes of {first}.txt{branch} with the message "{message}". '
            "Do not commit other changes."
        )
        expert = (*([f"git switch -q -c {third}"] if level == 3 else []), f"git commit -q -m '{message}' {first}.txt")
        names = [first]
    where = third if level == 3 else "main"
    probe = f"git -C /work log --format=%s {where}; git -C /work diff-tree -r --name-only --no-commit-id {where}"
    output = "\n".join([message, "start", *(f"{name}.txt" for name in names)])
    return Scene(goal, tree, Wanted(), expert, setup, Probe(probe, output))


@family
def git_find(rng: Random, level: int) -> Scene:
    """Find the commit that brought a word, and undo it at the highest level."""
    names = words(rng, number_of(level, 4, 7, 10))
    culprit = rng.randrange(1, len(names))
    setup = [START]
    lines: list[str] = []
    for number, name in enumerate(names):
        lines.append(f"{name} mistake" if number == culprit else name)
        setup.append(f"echo '{lines[-1]}' > {name}.txt; {_commit(number, f'add {name}')}")
    subject, path = f"add {names[culprit]}", f"{names[culprit]}.txt"
    ask = "git log --format=%s -S mistake"
    if level < 3:
        goal = "This folder is a git repository. One commit brought the word mistake. Write the first line of its message to answer.txt."
        return Scene(goal, {}, Wanted({"answer.txt": subject}, loose=True), (f"{ask} > answer.txt",), tuple(setup))
    goal = "This folder is a git repository. One commit brought the word mistake. Revert that commit with git revert, and keep all others."
    left = {f"{name}.txt": f"{name}\n" for name in names if name != names[culprit]}
    script = "git -C /work log -1 --format=%s; git -C /work ls-tree -r --name-only HEAD"  # nothing that runs a filter of the repository
    probe = Probe(script, "\n".join([f'Revert "{subject}"', *sorted(left)]))
    return Scene(goal, {}, Wanted(left, [path]), ("git revert --no-edit $(git log --format=%H -S mistake)",), tuple(setup), probe)
