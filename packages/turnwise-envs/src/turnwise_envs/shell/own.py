"""What a task starts from: a generated scene, or a folder of the user's own with task.md, check.sh and files."""

from __future__ import annotations

from pathlib import Path

from turnwise.data.tasks import Task
from turnwise.util.errors import TurnwiseError
from turnwise_envs.shell.families import scene
from turnwise_envs.shell.scene import Probe, Scene
from turnwise_envs.shell.tree import read_folder

GOAL, CHECK, FILES, EXPERT = "task.md", "check.sh", "files", "expert.sh"
# A check imports no module of the agent's, in whatever folder it is.
ISOLATED = 'python3() { command python3 -I "$@"; }; python() { command python -I "$@"; }; export -f python3 python'


def scene_of(task: Task) -> Scene:
    """What a task starts from."""
    data = task.data
    if "own" in data:
        return _own_scene(task, Path(str(data["own"])))
    if not {"family", "level", "number"} <= set(data):
        raise TurnwiseError(f"task {task.id!r} is not a shell task: its data has no family, level and number, and no folder")
    return scene(str(data["family"]), int(data["level"]), str(data["number"]))


def own_tasks(folder: Path, split: str) -> list[Task]:
    """The tasks in a folder: its folders that hold a task.md and a check.sh, by name; every fifth is for "valid"."""
    if not folder.is_dir():
        raise TurnwiseError(f"shell: there is no folder {folder}")
    named = sorted(path for path in folder.iterdir() if (path / GOAL).is_file())
    if not named:
        raise TurnwiseError(f"shell: {folder} has no task: a task is a folder with {GOAL}, {CHECK} and, if it needs files, {FILES}/")
    for path in named:
        if not (path / CHECK).is_file():
            raise TurnwiseError(f"shell: {path} has no {CHECK}: a script that ends with exit code 0 if the task is solved")
    return [
        Task(path.name, split, {"own": str(path.resolve())})
        for number, path in enumerate(named)
        if (number % 5 == 4) == (split == "valid") and split != "test"
    ]


def _own_scene(task: Task, path: Path) -> Scene:
    try:
        goal = (path / GOAL).read_text("utf-8").strip()
        check = (path / CHECK).read_text("utf-8")
        tree = read_folder(path / FILES) if (path / FILES).is_dir() else {}
        expert = (path / EXPERT).read_text("utf-8").strip() if (path / EXPERT).is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise TurnwiseError(f"task {task.id!r}: {path} cannot be read: {error}") from None
    script = f"{ISOLATED}\n( {check}\n) >/dev/null 2>&1"
    return Scene(goal, tree, lambda found: "", (expert,) if expert else (), probe=Probe(script))
