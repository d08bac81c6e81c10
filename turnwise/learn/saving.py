"""Writing folders so that a partial one is never visible, and models as Hugging Face folders."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from turnwise.util.errors import TurnwiseError
from turnwise.util.files import as_readable_as_their_folder, folder_beside

PART, OLD = ".turnwise-part", ".turnwise-old"  # suffixes of unfinished folders, and of those that are being replaced


def write_folder(path: str | Path, fill: Callable[[Path], Any]) -> Path:
    """Call `fill` with a new folder next to `path`, flush its files to the disk, then replace what was there.

    Whatever goes wrong (a full disk, a kill), what was at `path` before is still there or can be found again; what earlier attempts at
    the same folder left unfinished is removed first. Others may write next to it at the same time.
    """
    path = Path(path)
    temporary = begin_folder(path)
    try:
        fill(temporary)
        complete_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush(path.parent)
    return path


def begin_folder(path: Path) -> Path:
    """A new hidden folder next to `path`, to be filled."""
    _make(path.parent)
    sweep(path.parent, path.name)
    return folder_beside(path, PART)


def complete_folder(temporary: Path, path: Path) -> None:
    """Flush the files of a filled folder to the disk, and give it its name."""
    as_readable_as_their_folder(temporary)  # safetensors makes files that only their owner can read
    for file in sorted(temporary.rglob("*")):
        _flush(file)
    _flush(temporary)
    _swap(temporary, path)


def sweep(parent: Path, name: str | None = None) -> None:
    """Remove what killed writers of `name` (None: of anything) left in this folder; put back a folder that was caught between the two
    renames. Call it from the one process that writes there: what another one is writing right now would be removed too."""
    names = "*" if name is None else escape(name)
    for old in parent.glob(f".{names}{OLD}"):
        restore(parent / old.name.removeprefix(".").removesuffix(OLD))
        shutil.rmtree(old, ignore_errors=True)
    for part in parent.glob(f".{names}.*{PART}"):
        shutil.rmtree(part, ignore_errors=True)


def restore(path: Path) -> None:
    """Restore the folder that was renamed for a new one that was never completed."""
    aside = path.parent / f".{path.name}{OLD}"
    if aside.is_dir() and not path.exists():
        aside.replace(path)


def _swap(new: Path, path: Path) -> None:
    """A folder that is not empty cannot be replaced in one step, so the old one is renamed first."""
    if not path.exists():
        new.replace(path)
        return
    aside = path.parent / f".{path.name}{OLD}"
    path.replace(aside)
    try:
        new.replace(path)
    except BaseException:
        aside.replace(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise TurnwiseError(f"{folder} is not a folder, so nothing can be written into it") from None


def _flush(path: Path) -> None:
    folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows flushes only what may be written
    except PermissionError:
        if folder:  # and has no handles for folders: there the rename alone has to do
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Inside, transformers shows no progress bar."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def write_model(
    model: nn.Module, folder: Path, merged: bool, tokenizer: Any = None, also: Callable[[Path], Any] = lambda folder: None
) -> Path:
    """The model (adapters merged into a copy, or alone) and its tokenizer as one Hugging Face folder, and what `also` puts into it."""
    adapted = hasattr(model, "merge_and_unload")  # peft has wrapped it
    whole: Any = copy.deepcopy(model).merge_and_unload() if adapted and merged else model
    return write_with(whole.save_pretrained, folder, tokenizer, also)


def write_with(save: Callable[[Path], Any], folder: Path, tokenizer: Any = None, also: Callable[[Path], Any] = lambda folder: None) -> Path:
    """The same with a function that writes the model into a folder."""

    def fill(temporary: Path) -> None:
        with no_progress_bar():  # one file in a moment: nothing to watch, and it would break the run's own display
            save(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        also(temporary)

    try:
        return write_folder(folder, fill)
    except (OSError, SafetensorError) as error:
        raise TurnwiseError(f"the model could not be written to {folder} ({error}). Is the disk full?") from error


def fingerprint(model: nn.Module) -> str:
    """A short hash of the weights that are not trained: names, shapes and a few numbers of each. Empty if all are trained."""
    digest, frozen = hashlib.sha256(), False
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            frozen = True
            sample = parameter.detach().flatten()[:: max(1, parameter.numel() // 16)][:32]
            digest.update(f"{name} {tuple(parameter.shape)} {sample.float().tolist()}".encode())
    return digest.hexdigest()[:16] if frozen else ""
