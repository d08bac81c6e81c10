"""Checkpoints: folders that are complete or do not exist.

    checkpoints/step-00000120/weights.safetensors, optimiser.safetensors, …, state.json, manifest.json

A folder is filled under a hidden name and then renamed, so a kill or a full disk while saving leaves the checkpoints before it as they
were. The manifest holds the size and sha256 of every file and is written last; reading checks them all, and `latest_good` goes back to the
newest checkpoint that passes.

Several learner ranks write one together: each writes its shares into a separate file, through torch.distributed.checkpoint as safetensors,
and the first one writes the rest and renames the folder when all have succeeded. Each file says which part of which tensor it holds, so
any number of ranks reads the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from turnwise.learn.ranks.group import Ranks, is_sharded, placed_like
from turnwise.learn.saving import OLD, PART, begin_folder, complete_folder, sweep, write_folder
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

T = TypeVar("T")
VERSION = 1
PATTERN = re.compile(r"step-(\d{8,})")
FILE = re.compile(r"[\w-]+\.(safetensors|json)")
AUXILIARY = "model_"  # prefix of the groups of auxiliary models, one group per model
Like = Callable[[str], Tensor | None]  # a tensor that is sharded as the one of this name is; None: it is not sharded


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: the tensors of learner and auxiliary models by name, the JSON state, the step, and the score it was saved with."""

    path: Path
    step: int
    score: float | None
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    score: float | None = None,
    keep: int = 2,
) -> Path:
    """Write checkpoint `step`, then remove all but the newest `keep` and the one with the highest score.

    Tensors go into one file per group, where the group is the part of the name before the first "/".
    """
    check(step, keep, tensors)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, own = name.partition("/")
        groups.setdefault(group, {})[own] = tensor.detach().contiguous()
    json.dumps(state)  # raises before anything is written

    def fill(temporary: Path) -> None:
        for group, own in groups.items():
            save_file(own, temporary / f"{group}.safetensors")
        write_manifest(temporary, step, score, state, digests(sorted(temporary.iterdir())))

    path = Path(folder) / f"step-{step:08d}"
    try:
        sweep(path.parent)
        write_folder(path, fill)
    except (OSError, SafetensorError) as error:
        raise _unwritten(path, error) from error
    prune(folder, keep)
    return path


def check(step: int, keep: int, tensors: Mapping[str, Tensor]) -> None:
    """Raises an error if this cannot be saved."""
    if keep < 1 or step < 0:
        raise TurnwiseError(f"checkpoint: keep is at least 1 and step at least 0, not keep={keep} and step={step}")
    for name in tensors:
        group, separator, own = name.partition("/")
        if not separator or not own or not re.fullmatch(r"\w+", group):
            raise TurnwiseError(f"checkpoint: tensor {name!r} needs a name of the form group/name")


def digests(files: Iterable[Path]) -> dict[str, Any]:
    """Size and sha256 of files, by name."""
    return {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def write_manifest(
    folder: Path, step: int, score: float | None, state: Mapping[str, Any], files: Mapping[str, Any], ranks: int | None = None
) -> None:
    """The last two files of a checkpoint. `files` are the digests of those with tensors; `ranks` processes wrote them, None: one."""
    (folder / "state.json").write_text(json.dumps(state, indent=1), "utf-8")
    score = None if score is None or math.isnan(score) else float(score)
    manifest = {"version": VERSION, "step": step, "score": score, "files": {**files, **digests([folder / "state.json"])}}
    manifest |= {} if ranks is None else {"ranks": ranks}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")


def load(path: str | Path) -> Checkpoint:
    """Read one checkpoint; every file must be what the manifest says."""
    verify(Path(path))
    return read(Path(path))


def verify(path: Path) -> None:
    """Raises an error if a file of a checkpoint is not what the manifest says."""
    manifest = _manifest(path)
    for name, wanted in manifest["files"].items():
        if not FILE.fullmatch(name):
            raise TurnwiseError(f"checkpoint {path} is damaged: its manifest names {name!r}, which is not a file of a checkpoint")
        file = inside(path, path / name)
        if not file.is_file() or file.stat().st_size != wanted["bytes"]:
            raise TurnwiseError(f"checkpoint {path} is damaged: {name} is missing or has the wrong size")
        if _sha256(file) != wanted["sha256"]:
            raise TurnwiseError(f"checkpoint {path} is damaged: {name} does not match its sha256")
    _state(path)


def read(path: Path, like: Like = lambda name: None, ranks: Ranks | None = None) -> Checkpoint:
    """Read one checkpoint, which is intact. With `ranks`, all processes read it together, each its shares: `like` says how tensors are
    sharded."""
    manifest = _manifest(path)
    if "ranks" in manifest:
        tensors = _read_shards(path, like, ranks)
    else:
        groups = [name.removesuffix(".safetensors") for name in manifest["files"] if name.endswith(".safetensors")]
        tensors = {n: t for group in groups for n, t in _read_plain(path / f"{group}.safetensors", group, like).items()}
    return Checkpoint(path, manifest["step"], manifest["score"], tensors, _state(path))


def latest_good(folder: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint; damaged ones are skipped with a warning. None if there is none at all."""
    path = newest_intact(folder)
    return None if path is None else read(path)


def newest_intact(folder: str | Path) -> Path | None:
    """Where that checkpoint is."""
    found, newest = checkpoints(folder), ""
    for path in reversed(found):
        try:
            verify(path)
            return path
        except (TurnwiseError, OSError, ValueError) as error:
            if not path.exists():  # removed in the meantime by the process that writes here
                continue
            newest = newest or str(error)
            warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
    if found:
        raise TurnwiseError(
            f"none of the {len(found)} checkpoints in {folder} is intact ({newest}). Restore the folder from a backup, or start a new run"
        )
    return None


def best(folder: str | Path) -> Path | None:
    """The checkpoint with the highest score (the newest of equals); None if none has one."""
    scored = []
    for path in checkpoints(folder):
        try:
            score = _manifest(path)["score"]
        except TurnwiseError:
            continue
        if score is not None:
            scored.append((score, path))
    return max(scored)[1] if scored else None


def checkpoints(folder: str | Path) -> list[Path]:
    """All checkpoints, oldest first, intact or not."""
    return list(by_step(folder).values())


def by_step(folder: str | Path) -> dict[int, Path]:
    """The same by their steps. One that is being replaced is found under its hidden name: a reader restores nothing, since the writer may
    be at work."""
    folder = Path(folder)
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():  # hidden ones last: they are only a fallback
        name = path.name.removeprefix(".").removesuffix(OLD) if path.name.endswith(OLD) else path.name
        if (match := PATTERN.fullmatch(name)) and path.is_dir():
            found.setdefault(int(match[1]), inside(folder, path))
    return dict(sorted(found.items()))


def prune(folder: str | Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep` and the best."""
    spared = best(folder)
    for path in checkpoints(folder)[:-keep]:
        if path != spared:
            gone = path.parent / f".{path.name}.gone{PART}"  # hidden first, so that a partly removed one never counts as damaged
            path.replace(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _state(path: Path) -> dict[str, Any]:
    state = json.loads((path / "state.json").read_text("utf-8"))
    if not isinstance(state, dict):
        raise TurnwiseError(f"checkpoint {path} is damaged: its state.json holds no state")
    return state


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise TurnwiseError(f"checkpoint {path} is damaged or unfinished: its manifest.json cannot be read") from None
    if not isinstance(manifest, dict) or not {"version", "step", "score", "files"} <= set(manifest):
        raise TurnwiseError(f"checkpoint {path} is damaged: its manifest.json lacks what it should hold")
    if manifest["version"] != VERSION:
        raise TurnwiseError(f"checkpoint {path} has format {manifest['version']}, and this Turnwise reads format {VERSION}")
    files, score = manifest["files"], manifest["score"]
    good = isinstance(files, dict) and all(isinstance(file, dict) and {"bytes", "sha256"} <= set(file) for file in files.values())
    if not good or "state.json" not in files or not isinstance(manifest["step"], int) or not isinstance(score, (int, float, type(None))):
        raise TurnwiseError(f"checkpoint {path} is damaged: its manifest.json holds something else than it should")
    return manifest


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# Several learner ranks.


def save_together(
    ranks: Ranks,
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    score: float | None = None,
    keep: int = 2,
) -> Path:
    """`save` by several ranks, each of which has its shares. If one of them fails, all raise the error, and the checkpoints before it are
    untouched."""
    check(step, keep, tensors)
    path = Path(folder) / f"step-{step:08d}"
    temporary = _by_first(ranks, lambda: _begin(path), path)
    digest: dict[str, Any] = {}
    problem = ""
    try:
        file = _write_shards(temporary, tensors, ranks)
        digest = digests([file]) if file.is_file() else {}
    except Exception as error:
        problem = f"rank {ranks.rank}: {type(error).__name__}: {str(error)[-300:]}"
    everywhere = ranks.gather((problem, digest))
    problems = [problem for problem, _ in everywhere if problem]
    if problems:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritten(path, problems[0])
    files = {name: entry for _, written in everywhere for name, entry in written.items()}

    def finish() -> None:
        try:
            write_manifest(temporary, step, score, state, files, ranks.size)
            complete_folder(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        prune(folder, keep)

    _by_first(ranks, finish, path)
    return path


def _begin(path: Path) -> Path:
    sweep(path.parent)
    return begin_folder(path)


def _by_first(ranks: Ranks, work: Callable[[], T], path: Path) -> T:
    """What the first rank answers; its error everywhere, as that of the checkpoint that it writes."""
    try:
        return ranks.by_first(work)
    except TurnwiseError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, problem: object) -> TurnwiseError:
    return TurnwiseError(f"checkpoint {path} could not be written ({problem}); those before it are untouched. Is the disk full?")


def _write_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> Path:
    """Write this rank's shares, together with the others. Returns its own file."""
    import torch.distributed.checkpoint as dcp  # a second of imports that one process does not need

    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer, process_group=ranks.group)
    return folder / f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors"


def _read_shards(folder: Path, like: Like, ranks: Ranks | None) -> dict[str, Tensor]:
    """All tensors of a folder that several ranks have written: shares where `like` has shares, whole ones elsewhere, on the CPU."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        example: Any = like(name)
        tensors[name] = torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        if example is not None and is_sharded(example):
            tensors[name] = torch.empty_like(example, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a single process needs no process group, which torch mentions
        reader = dcp.HuggingFaceStorageReader(str(folder))
        if ranks is None:
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        else:
            dcp.load(tensors, storage_reader=reader, process_group=ranks.group)
    return tensors


def _read_plain(file: Path, group: str, like: Like) -> dict[str, Tensor]:
    """The tensors of a file that one process has written, cut into shares one after another."""
    tensors = {}
    with safe_open(file, framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118 (it is not a dictionary)
            example = like(f"{group}/{name}")
            tensor = handle.get_tensor(name)
            tensors[f"{group}/{name}"] = tensor if example is None else placed_like(tensor, example)
    return tensors
