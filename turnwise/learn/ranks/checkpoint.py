"""Checkpoints of several processes. They look like those of one (`turnwise/learn/checkpoint.py`): a folder that is complete or does not
exist, with a manifest. Each process writes its shares into a separate file; the first one writes the rest and renames the folder when all
have succeeded. Any number of processes reads them, and those of one process too."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from turnwise.learn import checkpoint
from turnwise.learn.checkpoint import Checkpoint
from turnwise.learn.ranks import storage
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.saving import begin_folder, complete_folder, sweep
from turnwise.util.errors import TurnwiseError


def save(
    ranks: Ranks,
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    score: float | None = None,
    keep: int = 2,
) -> Path:
    """Write checkpoint `step`, together with the other processes, then remove old ones. If one of them fails, all raise the error, and the
    checkpoints before it are untouched."""
    checkpoint.check(step, keep, tensors)
    path = Path(folder) / f"step-{step:08d}"
    temporary = Path(_by_first(ranks, path, lambda: str(_begin(path))))
    digest: dict[str, Any] = {}
    problem = ""
    try:
        file = storage.write(temporary, tensors, ranks)
        digest = checkpoint.digests([file]) if file.is_file() else {}
    except Exception as error:
        problem = f"rank {ranks.rank}: {type(error).__name__}: {str(error)[-300:]}"
    found = ranks.gather((problem, digest))
    problems = [said for said, _ in found if said]
    if problems:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritten(path, problems[0])
    files = {name: entry for _, own in found for name, entry in own.items()}

    def finish() -> str:
        try:
            checkpoint.write_manifest(temporary, step, score, state, files, ranks.size)
            complete_folder(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        checkpoint.prune(folder, keep)
        return ""

    _by_first(ranks, path, finish)
    return path


def latest_good(ranks: Ranks, folder: str | Path, like: storage.Like) -> Checkpoint | None:
    """The newest intact checkpoint. The first process checks it, and each process reads its shares: `like` says how tensors are
    sharded."""
    found = _by_first(ranks, Path(folder), lambda: str(checkpoint.newest_intact(folder) or ""), "read")
    return checkpoint.read(Path(found), like, ranks) if found else None


def _begin(path: Path) -> Path:
    sweep(path.parent)
    return begin_folder(path)


def _by_first(ranks: Ranks, path: Path, work: Callable[[], str], what: str = "written") -> str:
    """What the first process answers; its error everywhere."""
    answer, problem = "", ""
    if ranks.rank == 0:
        try:
            answer = work()
        except Exception as error:
            problem = str(error) if isinstance(error, TurnwiseError) else f"{type(error).__name__}: {error}"
    answer, problem = ranks.gather((answer, problem))[0]
    if problem:
        raise TurnwiseError(problem) if what == "read" else _unwritten(path, problem)
    return answer


def _unwritten(path: Path, problem: str) -> TurnwiseError:
    return TurnwiseError(f"checkpoint {path} could not be written ({problem}); those before it are untouched. Is the disk full?")
