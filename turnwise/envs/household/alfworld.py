"""ALFWorld: the official text games, answered word for word as TextWorld answers them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.household.env import Anchor, Sight, WorldEnv
from turnwise.envs.household.games import GAME, SHARED, TREE, Entry, Library, TreeLibrary
from turnwise.envs.household.packed import PackedLibrary
from turnwise.envs.household.world import World
from turnwise.envs.needs import find_folder
from turnwise.util.errors import TurnwiseError

CACHED_WORLDS = 64  # about half a megabyte each

_libraries: dict[Path, Library] = {}


class AlfworldEnv(WorldEnv):
    """ALFWorld's games. `data`: the folder that has them (the official `json_2.1.1`, its parent, or a packed folder); by default the
    environment looks in `$TURNWISE_DATA/alfworld`, `$ALFWORLD_DATA` and `~/.cache/alfworld`. `anchor`, `expert_knows`: see `WorldEnv`.

    Task ids are `<split>/<task>/<trial>`; `task.data["task_type"]` is one of ALFWorld's six types. Trials of one task are a cluster.
    """

    name = "alfworld"

    def __init__(self, data: str | os.PathLike[str] | None = None, anchor: Anchor = "observation", expert_knows: Sight = "all"):
        super().__init__(anchor, expert_knows)
        self.library = open_library(data)

    def splits(self) -> list[str]:
        return self.library.splits()

    def tasks(self, split: str = "train") -> TaskSet:
        entries = self.library.entries(split)
        datas = ((entry, {"task_type": entry.task_type, "game": entry.digest}) for entry in entries.values())
        tasks = (Task(entry.id, split, data, cluster=entry.id.rpartition("/")[0]) for entry, data in datas)
        return TaskSet(tasks, name=f"alfworld/{split}")

    def world(self, task: Task) -> World:
        entry = self.library.entry(task.id)
        if task.data.get("game", entry.digest) != entry.digest:
            raise TurnwiseError(
                f"{entry.place}: this is not the game that the task {task.id!r} was made from (its content differs): use the same data"
            )
        return _world(self.library, entry)

    def load_ahead(self, task: Task) -> None:
        """Compile the game of a task that is played soon."""
        self.world(task)

    def _kept(self) -> dict[str, Any]:
        """The game's file is not part of a snapshot; its digest is, so that another game under the same name is rejected."""
        task = self._running()
        game = replace(task, data={**task.data, "game": self.library.entry(task.id).digest})
        return {"task": game.to_json(), **super()._kept()}

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """The solution in the game's file."""
        return self.library.read(self.library.entry(task.id)).walkthrough


@lru_cache(maxsize=CACHED_WORLDS)
def _world(library: Library, entry: Entry) -> World:
    """The game's world; the most recently used ones are kept, for all environments of this process."""
    game = library.read(entry)
    try:
        return World.from_text(game.problem, game.domain, game.grammar)
    except TurnwiseError as error:
        raise TurnwiseError(f"{entry.place}: {error}") from None


def open_library(data: str | os.PathLike[str] | None = None) -> Library:
    """The games of a folder; opened once per process."""
    folder = find_data() if data is None else Path(data).expanduser()
    kind, root = _form(folder)
    if kind is None:
        raise TurnwiseError(f"{folder}: no ALFWorld games there. {_EXPECTED}")
    root = root.resolve()
    if root not in _libraries:
        _libraries[root] = kind(root)
    return _libraries[root]


def _form(folder: Path) -> tuple[type[PackedLibrary] | type[TreeLibrary] | None, Path]:
    """How the games are stored in a folder, and the folder that has the splits."""
    if (folder / SHARED).is_file():
        return PackedLibrary, folder
    for root in (folder / TREE, folder):
        if root.is_dir() and next(root.glob(f"*/*/*/{GAME}"), None):
            return TreeLibrary, root
    return None, folder


_EXPECTED = (
    f"Expected the official tree ({TREE}/<split>/<task>/<trial>/{GAME}, or its parent) or a packed folder ({SHARED} and <split>.jsonl.xz). "
    "To get the games: `pip install alfworld` in an environment of its own and run `alfworld-download`, which puts them into "
    "~/.cache/alfworld; elsewhere: set ALFWORLD_DATA to the folder, or pass data=… (in a recipe: env.options.data)"
)


def find_data() -> Path:
    """The first of the usual folders that has games."""
    return find_folder("ALFWorld's games", lambda place: _form(place)[0] is not None, "alfworld", "alfworld", "ALFWORLD_DATA", _EXPECTED)
