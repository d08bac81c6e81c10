"""A small shell: eight commands over folders and files in memory, with the words of bash and of GNU's programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.base import drawn_tasks
from turnwise.envs.dice import Dice
from turnwise.envs.episodes import EpisodeEnv

WORDS = ("apple", "cherry", "lemon", "melon", "plum")
FOLDERS = ("blue", "green", "pink", "red")
NAMES = ("bell", "coin", "fork", "lamp", "nail", "shoe")
KINDS = {"move": "mv", "delete": "rm"}
SUBMIT = "submit"
MISSING, NO_FOLDER, DENIED, BUSY = "No such file or directory", "Not a directory", "Permission denied", "Device or resource busy"
PLAIN = re.compile(r"[a-z./ -]*", re.ASCII)
OPERANDS = {"ls": (0, 1), "cd": (0, 1), "cat": (0, 1), "grep": (2, 2), "mv": (2, 2), "cp": (2, 2), "rm": (1, 1), "mkdir": (1, 1)}


class No(Exception):
    """What the system answers to a path."""


class Shell:
    """Folders (None) and files (a line of text) by their path from the top, and the folder that one is in. `run` answers like an
    interactive bash that begins at the top, its home, with these differences: nothing leads above the top (`Permission denied`); a
    folder that one is in cannot be moved (`Device or resource busy`); a path has no slash at its ends; `grep` has one form,
    `grep -rl WORD`, and its answer is sorted; there are no other options, operands, or characters with a meaning."""

    def __init__(self, tree: Mapping[str, str | None], cwd: str = ""):
        self.tree, self.cwd = dict(tree), cwd

    def run(self, command: str) -> str:
        """Do it, and what it prints."""
        if not PLAIN.fullmatch(command):
            return "bash: syntax error"
        name, *given = command.split() or [""]
        if name not in OPERANDS:
            return self._program(name) if name else ""
        least, most = OPERANDS[name]
        options = [word for word in given if word.startswith("-")]
        if options != (["-rl"] if name == "grep" else []) or options != given[: len(options)]:
            return f"{name}: invalid option"
        if len(given) > most:
            return "bash: cd: too many arguments" if name == "cd" else f"{name}: extra operand"
        if len(given) < least:
            return _too_few(name, given)
        return str(getattr(self, f"_{name}")(*given))

    def _program(self, name: str) -> str:
        """There are no programs but those: a word with a slash is a path, and a file there cannot be run."""
        if "/" not in name:
            return f"bash: {name}: command not found"
        try:
            return f"bash: {name}: {'Is a directory' if self._is_folder(self._found(name)) else DENIED}"
        except No as error:
            return f"bash: {name}: {error}"

    def listed(self, folder: str) -> list[str]:
        """The names in a folder."""
        return sorted(path.rpartition("/")[2] for path in self.tree if path.rpartition("/")[0] == folder)

    def _is_folder(self, path: str) -> bool:
        return not path or (path in self.tree and self.tree[path] is None)

    def _exists(self, path: str) -> bool:
        return not path or path in self.tree

    def _place(self, path: str) -> str:
        """Where a path leads; its last part need not exist."""
        at, parts = self.cwd, path.split("/")
        if not all(parts):
            raise No(MISSING)
        for part in parts:
            if not self._is_folder(at):
                raise No(NO_FOLDER if self._exists(at) else MISSING)
            if part == ".." and not at:
                raise No(DENIED)
            at = at if part == "." else at.rpartition("/")[0] if part == ".." else f"{at}/{part}".lstrip("/")
        return at

    def _found(self, path: str) -> str:
        place = self._place(path)
        if not self._exists(place):
            raise No(MISSING)
        return place

    def _ls(self, path: str = ".") -> str:
        try:
            place = self._found(path)
        except No as error:
            return f"ls: cannot access '{path}': {error}"
        return "\n".join(self.listed(place)) if self._is_folder(place) else path

    def _cd(self, path: str | None = None) -> str:
        try:
            place = "" if path is None else self._found(path)
            if not self._is_folder(place):
                raise No(NO_FOLDER)
        except No as error:
            return f"bash: cd: {path}: {error}"
        self.cwd = place
        return ""

    def _cat(self, path: str | None = None) -> str:
        if path is None:  # nothing is typed into it
            return ""
        try:
            place = self._found(path)
        except No as error:
            return f"cat: {path}: {error}"
        return f"cat: {path}: Is a directory" if self._is_folder(place) else str(self.tree[place])

    def _grep(self, option: str, word: str) -> str:
        inside = f"{self.cwd}/".lstrip("/")
        found = (path for path, text in self.tree.items() if text is not None and word in text and path.startswith(inside))
        return "\n".join(sorted(path.removeprefix(inside) for path in found))

    def _rm(self, path: str) -> str:
        try:
            place = self._found(path)
        except No as error:
            return f"rm: cannot remove '{path}': {error}"
        if self._is_folder(place):
            return f"rm: cannot remove '{path}': Is a directory"
        del self.tree[place]
        return ""

    def _mkdir(self, path: str) -> str:
        try:
            place = self._place(path)
            if self._exists(place):
                raise No("File exists")
        except No as error:
            return f"mkdir: cannot create directory '{path}': {error}"
        self.tree[place] = None
        return ""

    def _target(self, source: str, target: str) -> tuple[str, str]:
        """Where `mv` and `cp` write to: the target's path, or one in it if it is a folder; as it is named, and where it leads."""
        place = self._place(target)
        if not self._is_folder(place):
            return target, place
        name = source.rpartition("/")[2]
        return f"{target}/{name}", self._place(f"{target}/{name}")

    def _cp(self, source: str, target: str) -> str:
        try:
            named, to = self._target(source, target)
        except No as error:
            named, to, why = target, None, error
        try:
            place = self._found(source)
        except No as error:
            return f"cp: cannot stat '{source}': {error}"
        if self._is_folder(place):
            return f"cp: -r not specified; omitting directory '{source}'"
        if to is None:
            return f"cp: cannot {'create regular file' if str(why) == MISSING else 'stat'} '{named}': {why}"
        if to == place:
            return f"cp: '{source}' and '{named}' are the same file"
        if self._is_folder(to):
            return f"cp: cannot overwrite directory '{named}' with non-directory"
        self.tree[to] = self.tree[place]
        return ""

    def _mv(self, source: str, target: str) -> str:
        try:
            named, to = self._target(source, target)
        except No as error:
            named, to, why = target, None, error
        try:
            place = self._found(source)
        except No as error:
            return f"mv: cannot stat '{source}': {error}"
        inside = f"{place}/".lstrip("/")
        moving = f"mv: cannot move '{source}' to '{named}'"
        if f"{self.cwd}/".startswith(inside):
            return f"{moving}: {BUSY}"
        if to is None:
            return f"{moving}: {why}" if str(why) == MISSING else f"mv: cannot stat '{named}': {why}"
        if to == place:
            return f"mv: '{source}' and '{named}' are the same file"
        if self._is_folder(place):
            if self._exists(to) and not self._is_folder(to):
                return f"mv: cannot overwrite non-directory '{named}' with directory '{source}'"
            if to.startswith(inside):
                return f"mv: cannot move '{source}' to a subdirectory of itself, '{named}'"
            if self._exists(to) and self.listed(to):
                return f"{moving}: Directory not empty"
        elif self._is_folder(to):
            return f"mv: cannot overwrite directory '{named}' with non-directory"
        moved = {path: text for path, text in self.tree.items() if path == place or path.startswith(inside)}
        self.tree = {path: text for path, text in self.tree.items() if path not in moved}
        self.tree |= {to + path.removeprefix(place): text for path, text in moved.items()}
        return ""


def _too_few(name: str, given: list[str]) -> str:
    if name == "grep":
        return "grep: no pattern"
    what = f"destination file operand after '{given[0]}'" if given else "file operand" if name in ("mv", "cp") else "operand"
    return f"{name}: missing {what}\nTry '{name} --help' for more information."


def short(output: str) -> str:
    """On one line. Of an error what stands after its last colon: `rm: cannot remove 'red': Is a directory` is `Is a directory`."""
    return " ".join(line.rpartition(": ")[2] for line in output.splitlines() if not line.startswith("Try "))


class SmallShell(EpisodeEnv):
    """Move or delete all files that hold a word; the folder that they go to may have to be made first. `submit` ends the attempt;
    the reward is 1 if the tree is then as the task wants it, and 0 for any other. A text has the task, the last command, its answer
    (`short`), and the folder that one is in."""

    name = "small-shell"
    instructions = f"Do what is asked for with {', '.join(OPERANDS)}, then {SUBMIT}."
    max_turns = 14

    def __init__(self) -> None:
        super().__init__()
        self.shell, self.wanted = Shell({}), dict[str, str | None]()
        self._command, self._answer = "", ""

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """What is to be done, and a number that the tree is drawn with."""

        def draw(dice: Dice) -> tuple[str, dict[str, Any]]:
            kind, word, folder, number = dice.pick(list(KINDS)), dice.pick(WORDS), dice.pick(FOLDERS), dice.below(1_000_000)
            goal = f"{kind} {word} {folder}" if kind == "move" else f"{kind} {word}"
            return f"{goal} {number}", {"goal": goal, "kind": kind, "word": word, "folder": folder, "number": number}

        return drawn_tasks("small-shell", split, n, draw)

    def _begin(self, task: Task, seed: int) -> None:
        self.shell = Shell(_tree(task.data))
        self.wanted = _wanted(task.data, self.shell.tree)
        self._command = self._answer = ""

    def _play(self, action: str) -> Transition:
        self._command = " ".join(action.split())
        done = self._command == SUBMIT
        self._answer = "" if done else self.shell.run(self._command)
        won = done and self.shell.tree == self.wanted
        return Transition(self._see(), float(won), done, won)

    def _see(self) -> Observation:
        goal = "" if self._task is None else self._task.data["goal"]
        return Observation(f"{goal} . {self._command} {short(self._answer)} . {self.shell.cwd or 'top'} $")

    def expert_action(self) -> str:
        """From what can be seen: go to the top, look whether there is the folder, then for files until none is left."""
        data, verb = self._running().data, self._command.partition(" ")[0]
        lines, folder = self._answer.splitlines(), data["folder"]
        search, needed = f"grep -rl {data['word']}", data["kind"] == "move"
        if self.shell.cwd:
            return "cd .."
        if verb == "grep" and (not needed or folder in self.shell.tree):
            left = [path for path in lines if not needed or not path.startswith(f"{folder}/")]
            return " ".join([KINDS[data["kind"]], left[0], folder][: 2 + needed]) if left else SUBMIT
        if needed and self._command == "ls":
            return search if folder in lines else f"mkdir {folder}"
        changed = verb in ("mkdir", *KINDS.values()) and not lines
        return search if changed or not needed else "ls"

    def random_action(self, number: int) -> str:
        """A command with names that are there."""
        dice, data = Dice(f"shell {number}"), self._running().data
        paths = [path.removeprefix(f"{self.shell.cwd}/") for path, text in sorted(self.shell.tree.items()) if text is not None] or ["."]
        path, folder = dice.pick(paths), dice.pick([data["folder"], *FOLDERS])
        forms = ("ls", f"cd {folder}", f"cat {path}", f"grep -rl {data['word']}", f"mkdir {folder}", f"rm {path}", SUBMIT)
        return dice.pick((*forms, f"{dice.pick(('mv', 'cp'))} {path} {folder}"))

    def _kept(self) -> dict[str, Any]:
        return {"tree": self.shell.tree, "cwd": self.shell.cwd, "command": self._command, "answer": self._answer}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._begin(task, 0)
        self.shell = Shell(kept["tree"], kept["cwd"])
        self._command, self._answer = kept["command"], kept["answer"]


def _tree(data: Mapping[str, Any]) -> dict[str, str | None]:
    """Three or four files in two folders besides the one of the task, which two tasks in three have; one or two of them hold the word."""
    dice = Dice(f"tree {data['number']}")
    names, folders, words = list(NAMES), [name for name in FOLDERS if name != data["folder"]], [w for w in WORDS if w != data["word"]]
    dice.shuffle(names)
    dice.shuffle(folders)
    folders = folders[:2]
    hits, others = 1 + dice.below(2), 1 + dice.below(2)
    tree: dict[str, str | None] = {f"{dice.pick(folders)}/{name}": data["word"] for name in names[:hits]}
    if dice.below(3):
        folders.append(data["folder"])
    tree |= {f"{dice.pick(folders)}/{name}": dice.pick(words) for name in names[hits : hits + others + 1]}
    return tree | dict.fromkeys(folders)


def _wanted(data: Mapping[str, Any], tree: Mapping[str, str | None]) -> dict[str, str | None]:
    hits = [path for path, text in tree.items() if text == data["word"]]
    wanted = {path: text for path, text in tree.items() if path not in hits}
    if data["kind"] == "move":
        wanted |= {data["folder"]: None} | {f"{data['folder']}/{path.rpartition('/')[2]}": data["word"] for path in hits}
    return wanted
