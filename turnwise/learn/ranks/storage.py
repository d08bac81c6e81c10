"""Tensors of several processes in one folder, through torch.distributed.checkpoint: a safetensors file per process, and nothing that
executes when it is read. Each file says which part of which tensor it holds, so any number of processes reads the folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from turnwise.learn.ranks.group import Ranks
from turnwise.learn.ranks.tensors import is_shared, placed_like

Like = Callable[[str], Tensor | None]  # how a tensor of this name is sharded here; None: not at all


def write(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> Path:
    """Write this process's shares, together with the others. Returns its own file."""
    import torch.distributed.checkpoint as dcp  # a second of imports that one process does not need

    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer, process_group=ranks.group)
    return folder / f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors"


def read(folder: Path, like: Like, ranks: Ranks | None) -> dict[str, Tensor]:
    """All tensors of a folder that several processes have written: shares where `like` has shares, whole ones elsewhere, on the CPU."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, found in reader.read_metadata().state_dict_metadata.items():
        own: Any = like(name)
        tensors[name] = torch.empty(tuple(found.size), dtype=found.properties.dtype)
        if own is not None and is_shared(own):
            tensors[name] = torch.empty_like(own, dtype=found.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a single process needs no process group, which torch mentions
        reader = dcp.HuggingFaceStorageReader(str(folder))
        if ranks is None:
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        else:
            dcp.load(tensors, storage_reader=reader, process_group=ranks.group)
    return tensors


def read_plain(file: Path, group: str, like: Like) -> dict[str, Tensor]:
    """The tensors of a file that one process has written, cut into shares one after another."""
    with safe_open(file, framework="pt") as handle:
        names = {name: f"{group}/{name}" for name in handle.keys()}  # noqa: SIM118 (it is not a dictionary)
        return {full: _cut(handle.get_tensor(name), like(full)) for name, full in names.items()}


def _cut(tensor: Tensor, own: Tensor | None) -> Tensor:
    return tensor if own is None else placed_like(tensor, own)
