"""Checkpoints: folders that are complete or do not exist.

    checkpoints/step-00000120/weights.safetensors, optimiser.safetensors, …, state.json, manifest.json

A folder is filled under a hidden name and then renamed, so a kill or a full disk while saving leaves the checkpoints before it as they
were. The manifest holds the size and sha256 of every file and is written last; reading checks them all, and `latest_good` goes back to the
newest checkpoint that passes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnwise.learn.saving import OLD, PART, sweep, write_folder
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

VERSION = 1
PATTERN = re.compile(r"step-(\d{8,})")
FILE = re.compile(r"\w+\.(safetensors|json)")
FURTHER = "model_"  # prefix of the groups of further models, one group per model


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: the learner's tensors by name, the JSON state, the step, the score it was saved with, and the tensors of further
    models."""

    path: Path
    step: int
    score: float | None
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    further: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Keeper:
    """A folder of checkpoints, and how many of them are kept."""

    folder: Path
    keep: int = 2

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], score: float | None = None) -> Path:
        """Write one; the newest `keep` and the best are kept."""
        return save(self.folder, step, tensors, state, score=score, keep=self.keep)

    def latest(self) -> Checkpoint | None:
        """The newest intact one."""
        return latest_good(self.folder)

    def best(self) -> Path | None:
        """The one with the highest score."""
        return best(self.folder)


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
    if keep < 1 or step < 0:
        raise TurnwiseError(f"checkpoint: keep is at least 1 and step at least 0, not keep={keep} and step={step}")
    score = None if score is None or math.isnan(score) else float(score)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, separator, own = name.partition("/")
        if not separator or not own or not re.fullmatch(r"\w+", group):
            raise TurnwiseError(f"checkpoint: tensor {name!r} needs a name of the form group/name")
        groups.setdefault(group, {})[own] = tensor.detach().contiguous()
    text = json.dumps(state, indent=1)

    def fill(temporary: Path) -> None:
        for group, own in groups.items():
            save_file(own, temporary / f"{group}.safetensors")
        (temporary / "state.json").write_text(text, "utf-8")
        files = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in sorted(temporary.iterdir())}
        manifest = {"version": VERSION, "step": step, "score": score, "files": files}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")

    path = Path(folder) / f"step-{step:08d}"
    try:
        sweep(path.parent)
        write_folder(path, fill)
    except (OSError, SafetensorError) as error:
        raise TurnwiseError(
            f"checkpoint {path} could not be written ({error}); those before it are untouched. Is the disk full?"
        ) from error
    prune(folder, keep)
    return path


def load(path: str | Path) -> Checkpoint:
    """Read one checkpoint; every file must be what the manifest says."""
    path = Path(path)
    manifest = _manifest(path)
    for name, wanted in manifest["files"].items():
        if not FILE.fullmatch(name):
            raise TurnwiseError(f"checkpoint {path} is damaged: its manifest names {name!r}, which is not a file of a checkpoint")
        file = inside(path, path / name)
        if not file.is_file() or file.stat().st_size != wanted["bytes"]:
            raise TurnwiseError(f"checkpoint {path} is damaged: {name} is missing or has the wrong size")
        if _sha256(file) != wanted["sha256"]:
            raise TurnwiseError(f"checkpoint {path} is damaged: {name} does not match its sha256")
    groups = [name.removesuffix(".safetensors") for name in manifest["files"] if name.endswith(".safetensors")]
    tensors = {f"{group}/{name}": tensor for group in groups for name, tensor in load_file(path / f"{group}.safetensors").items()}
    state = json.loads((path / "state.json").read_text("utf-8"))
    if not isinstance(state, dict):
        raise TurnwiseError(f"checkpoint {path} is damaged: its state.json holds no state")
    further = {name: tensor for name, tensor in tensors.items() if name.startswith(FURTHER)}
    own = {name: tensor for name, tensor in tensors.items() if name not in further}
    return Checkpoint(path, manifest["step"], manifest["score"], own, state, further)


def latest_good(folder: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint; damaged ones are skipped with a warning. None if there is none at all."""
    found = checkpoints(folder)
    for path in reversed(found):
        try:
            return load(path)
        except (TurnwiseError, OSError, ValueError) as error:
            if not path.exists():  # removed in the meantime by the process that writes here
                continue
            warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
    if found:
        raise TurnwiseError(
            f"none of the {len(found)} checkpoints in {folder} is intact: start a new run, or restore the folder from a backup"
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
