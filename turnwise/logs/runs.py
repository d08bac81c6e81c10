"""What Turnwise itself keeps: a run's attempts, and files that `turnwise trajectories` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from turnwise.data.rollouts import Trajectory
from turnwise.data.schema import from_rows
from turnwise.logs.attempts import Attempt
from turnwise.logs.files import Record
from turnwise.logs.messages import Message
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.reading import stored_trajectories


def is_run(path: Path) -> bool:
    """Whether a folder is a run."""
    return (path / CONFIG).is_file() and ((path / "rollouts").is_dir() or (path / "evals").is_dir())


def is_turn(value: Any) -> bool:
    """Whether this is a line of a file of trajectories."""
    return isinstance(value, dict) and {"trajectory", "t", "observation", "action"} <= value.keys()


def read_run(path: Path) -> Iterator[Attempt]:
    """The attempts of the last iteration that a run keeps; of its last evaluation, if it keeps no others."""
    run = Run.open(path)
    part = "rollouts" if run.iterations_of("rollouts") else "evals"
    for trajectory in stored_trajectories(run, run.last_iteration(part), part):
        yield _attempt(trajectory, path.name)


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """The attempts in files of trajectories."""
    files: dict[Path, list[Any]] = {}
    for record in records:
        files.setdefault(record.path, []).append(record.value)
    for path, rows in files.items():
        yield from (_attempt(trajectory, path.name) for trajectory in from_rows(rows, str(path)))


def _attempt(trajectory: Trajectory, where: str) -> Attempt:
    messages = []
    for turn in trajectory.turns:
        error = None if turn.valid else "the response could not be read as an action"
        messages.append(Message("user", turn.observation))
        messages.append(
            Message(
                "assistant", turn.response or turn.action, error=error, reward=turn.reward, action=turn.action, anchor=turn.anchor or None
            )
        )
    outcomes = {"success": trajectory.success, "reward": trajectory.reward}
    task = trajectory.task or str(trajectory.group)
    return Attempt(f"{where} {trajectory.id}", messages, task, outcomes, {}, trajectory.stop_detail or str(trajectory.stop))
