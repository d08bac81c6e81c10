"""A terminal in a sandbox as an environment: endless generated tasks, or folders of the user's own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.shell.box import reap
from turnwise_envs.shell.cgroup import say_if_missing
from turnwise_envs.shell.families import known_families
from turnwise_envs.shell.own import EXPERT, own_tasks, scene_of
from turnwise_envs.shell.sandbox import Shell, printable
from turnwise_envs.shell.scene import LEVELS, NAMES, Probe, Scene
from turnwise_envs.shell.spares import leave, take
from turnwise_envs.shell.start import Kind, Limits, require
from turnwise_envs.shell.tree import TooLarge, Tree, as_json, digest, from_json, plain

SUBMIT = "submit"
SPLITS = {"train": 0, "valid": 1, "test": 2}
SIZE = 100_000  # tasks of a split if no number is asked for
COMMON = (
    "ls",
    "ls -R",
    "pwd",
    "cat {one}",
    "head -2 {one}",
    "wc -l {one}",
    "rm -r {one}",
    "mv {one} {other}",
    "cp -r {one} {other}",
    "mkdir {name}",
    "touch {name}.txt",
    "grep -r {name} .",
    "find . -name '*.txt'",
    "sort {one} > {name}.txt",
    SUBMIT,
)  # fmt: skip; no `cd ..`: after it, others would search the whole system
MOST_KEPT = 256  # results of set-ups
SETUP = 60.0  # seconds for one

_kept: dict[str, Tree] = {}  # by task; a set-up has the same result in every environment of this process

Anchor = Literal["both", "state", "observation"]


class ShellEnv:
    """A bash in a sandbox. An action is a command, or `submit` to end the attempt and have the result checked.

    `families` and `levels` choose the generated tasks; `folder` has tasks of the user's own instead. `ends`: "submit", or "solved" to end
    as soon as the check holds. `anchor`: the state of files and folder ("state"), the text ("observation") or both. `seconds`,
    `memory_mb`, `processes`, `disk_mb` and `shown` are limits. A command that breaks one costs all running processes: the shell starts
    again on the same files. After `breaks` of those the attempt ends.
    """

    max_turns = 20
    shows = "terminal"
    instructions = (
        "You work in a terminal: bash on Linux, without a network. Each action is a command, which is run in the folder that the last one "
        "left you in. When the task is done, the action is: submit"
    )

    def __init__(
        self,
        families: Sequence[str] | str | None = None,
        levels: Sequence[int] | int = (1, 2, 3),
        folder: str | None = None,
        ends: Literal["submit", "solved"] = "submit",
        anchor: Anchor = "both",
        seconds: float = 10.0,
        memory_mb: int = 512,
        processes: int = 64,
        disk_mb: int = 16,
        shown: int = 4000,
        breaks: int = 3,
        sandbox: Kind = "bubblewrap",
    ):
        require(sandbox)
        say_if_missing()
        for what, value, known in (("end", ends, ("submit", "solved")), ("anchor", anchor, ("both", "state", "observation"))):
            if value not in known:
                raise unknown_name(f"{what} of the shell environment:", str(value), known)
        self.families = _chosen(families)
        self.levels = tuple([levels] if isinstance(levels, int) else levels)
        if not self.levels or not set(self.levels) <= set(LEVELS):
            raise TurnwiseError(f"shell: levels are some of {', '.join(map(str, LEVELS))}, not {levels!r}")
        self.folder = None if folder is None else Path(folder).expanduser()
        self.limits = Limits(seconds, memory_mb, processes, disk_mb, shown=shown)
        self.ends, self.anchor, self.breaks, self.sandbox = ends, anchor, breaks, sandbox
        self._shell: Shell | None = None
        self._task: Task | None = None
        self._scene: Scene | None = None
        self._broken, self._turn, self._followed, self._last = 0, 0, 0, ""
        self._over = "step() was called before reset(): call reset(task) first"

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The generated tasks of a split, families and levels in turn; or those of the folder, of which every fifth is "valid"."""
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        if self.folder is not None:
            found = own_tasks(self.folder, split)
            return TaskSet(found if n is None else found[:n], f"shell {self.folder.name} {split}")
        kinds = [(name, level) for level in self.levels for name in self.families]

        def make(index: int) -> Task:
            name, level = kinds[(index + index // len(kinds)) % len(kinds)]  # each round starts with another kind: any stride meets all
            number = index // len(kinds) * len(SPLITS) + SPLITS[split]
            return Task(f"{name}-{level}-{number}", split, {"family": name, "level": level, "number": number})

        return TaskSet.lazy(SIZE if n is None else n, make, f"shell {split}")

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._leave()
        self._task, self._scene = task, scene_of(task)
        self._shell = self._started(self._prepared(task, self._scene))
        self._broken, self._turn, self._followed, self._over = 0, 0, 0, ""
        return self._see(f"Your task is: {self._scene.goal}", "/work")

    def _started(self, tree: Tree, cwd: str = "/work") -> Shell:
        """A shell on these files, in a sandbox that was started ahead."""
        return Shell(tree, self.limits, cwd, box=take(self.limits, self.sandbox, self))

    def _prepared(self, task: Task, own: Scene) -> Tree:
        """The files that an attempt starts from. A task's set-up is run once; what it left is kept, and is the same everywhere."""
        if not own.setup:
            return own.tree
        key = " ".join(str(task.data[name]) for name in ("family", "level", "number"))
        if key not in _kept:
            shell = self._started(own.tree)
            try:
                done = shell.run("( set -e\n" + "\n".join(own.setup) + "\n)", max(self.limits.seconds, SETUP))
                if done.code or done.ended:
                    raise TurnwiseError(f"task {task.id!r}: its set-up failed: {done.ended or done.output}. Is git installed?")
                shell.freeze()
                _kept[key] = plain(shell.tree())
            finally:
                shell.close()
            while len(_kept) > MOST_KEPT:
                del _kept[next(iter(_kept))]
        return _kept[key]

    def step(self, action: str) -> Transition:
        if self._shell is None or self._task is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        self._turn += 1
        expert = self._scene.expert if self._scene is not None else ()
        self._followed += self._followed < len(expert) and action == expert[self._followed]
        if action.strip() == SUBMIT:
            return self._finish(self._shell.cwd)
        done = self._shell.run(action)
        text = done.output
        if done.ended:
            self._broken += 1
            text = f"{text}\n[{done.ended}: all processes were ended, and the shell started again]".strip()
            if self._broken >= self.breaks:
                return self._finish(done.cwd, f"{self._broken} times a command broke a limit; the last one: {done.ended}")
            self._restart(done.cwd)
        elif done.code:
            text = f"{text}\n[exit code {done.code}]".strip()
        if self.ends == "solved" and self._solved(frozen=False):
            return self._finish(done.cwd)
        return Transition(self._see(text or "[no output]", self._shell.cwd), info={"exit_code": done.code, "limit": done.ended})

    def _restart(self, cwd: str) -> None:
        """A new sandbox with the same files, or with those of the task if they are too large to be read back or written again."""
        assert self._shell is not None and self._task is not None and self._scene is not None
        old = self._shell
        try:
            self._shell = self._started(old.tree(), cwd)
        except TooLarge:
            self._shell = self._started(self._prepared(self._task, self._scene))
        finally:
            old.close()

    def _finish(self, cwd: str, reason: str = "") -> Transition:
        """The end of the attempt: all processes are killed first, then the files are checked."""
        assert self._shell is not None
        success = not reason and self._solved(frozen=True)
        self._over = "the attempt is over: call reset(task) before the next step"
        text = reason or ("The task is solved." if success else "The task is not solved.")
        observation = Observation(text, anchor=digest({}, text, cwd))
        self._shell.close()
        self._shell = None
        info = {"measures": {"commands": self._turn}, "output": text} | ({"reason": reason} if reason else {})
        return Transition(observation, float(success), True, success, info)

    def _solved(self, frozen: bool) -> bool:
        """Whether the resulting files are as the task wants them. Nothing that a command printed counts."""
        assert self._shell is not None and self._scene is not None
        if frozen:
            self._shell.freeze()
        try:
            tree = self._shell.tree()
        except TooLarge:
            return False
        if self._scene.check(tree):
            return False
        return self._scene.probe is None or self._probed(self._scene.probe, tree)

    def _probed(self, probe: Probe, tree: Tree) -> bool:
        """Run the probe in a fresh sandbox over a copy of the files that cannot be changed, so that nothing of the agent's shell has a say,
        nor what it left in its home or in the working folder."""
        try:
            fresh = Shell(tree, self.limits, box=take(self.limits, self.sandbox, self, check=True))
        except TooLarge:
            return False
        try:
            done = fresh.run(probe.script)
            return not done.ended and (done.code == 0 if probe.output is None else done.output.strip() == probe.output.strip())
        finally:
            fresh.close()

    def _see(self, text: str, cwd: str) -> Observation:
        assert self._shell is not None
        self._last = f"{text}\n{printable(cwd)}$"
        anchor: Any = None
        if self.anchor != "observation":
            try:
                anchor = digest(self._shell.tree(), cwd, *([self._last] if self.anchor == "both" else []))
            except TooLarge:
                anchor = digest({}, cwd, self._last)
        return Observation(self._last, anchor=anchor)

    def expert(self, task: Task) -> list[str]:
        """Commands that solve the task."""
        found = scene_of(task).expert
        if not found:
            raise TurnwiseError(f"task {task.id!r} has no {EXPERT}: there is no expert for it")
        return [*found, SUBMIT]

    def expert_action(self) -> str | None:
        """The first command of the expert that was not given yet: after a mistake it is still the next one."""
        if self._task is None or self._over:
            return None
        return self.expert(self._task)[self._followed]

    def scripted_action(self) -> str:
        """Look at the files, then give up: what a rule without understanding does."""
        return "ls -R" if self._turn == 0 else SUBMIT

    def random_action(self, number: int) -> str:
        """A common command with names that are there; the same for the same number and files."""
        rng = random.Random(f"shell action {number}")
        try:
            paths = sorted(self._shell.tree()) if self._shell is not None else []
        except TooLarge:
            paths = []
        one, other = (quote(rng.choice(paths)) if paths else "file" for _ in range(2))
        return rng.choice(COMMON).format(one=one, other=other, name=rng.choice(NAMES))

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes | None:
        """The files, the folder and the text. None if there is more: variables, functions and options of the shell, running processes,
        files outside of the working folder. A branch then plays the commands again."""
        if self._shell is None or self._task is None or self._over:
            raise EpisodeOver(self._over)
        tree, memory = self._shell.exact_tree(1 << 20), self._shell.memory()
        if tree is None or memory is None:
            return None
        state = {"task": self._task.to_json(), "tree": as_json(tree), "cwd": self._shell.cwd, "before": memory, "last": self._last}
        return pack("shell", state | {"broken": self._broken, "turn": self._turn, "followed": self._followed}, self._options())

    def restore(self, state: bytes) -> Observation:
        kept = unpack(state, "shell", self._options())
        with restoring("shell"):
            task, tree = Task.from_json(kept["task"]), from_json(kept["tree"])
            own, cwd, last = scene_of(task), str(kept["cwd"]), str(kept["last"])
            broken, turn, followed = int(kept["broken"]), int(kept["turn"]), int(kept["followed"])
            before = str(kept["before"])
        self._leave()
        self._shell = self._started(tree, cwd)
        self._shell.recall(before)
        self._task, self._scene, self._broken, self._turn, self._over = task, own, broken, turn, ""
        self._followed = min(max(followed, 0), len(own.expert))
        return self._see(last.rpartition("\n")[0], cwd)

    def _options(self) -> Mapping[str, Any]:
        return {"anchor": self.anchor, "ends": self.ends, "breaks": self.breaks}

    def close(self) -> None:
        self._leave()
        leave(self)
        reap(5)

    def _leave(self) -> None:
        """End the attempt's sandbox."""
        if self._shell is not None:
            self._shell.close()
        self._shell = None
        self._over = "the environment was closed: call reset(task) first"


def _chosen(families: Sequence[str] | str | None) -> tuple[str, ...]:
    names = tuple(known_families) if families is None else (families,) if isinstance(families, str) else tuple(families)
    for name in names:
        if name not in known_families:
            raise unknown_name("family of shell tasks", name, known_families)
    if not names:
        raise TurnwiseError(f"shell: families is empty; there are {', '.join(known_families)}")
    return names
