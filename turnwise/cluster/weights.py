"""How the learner's weights reach the engines.

store  one copy per version in Ray's shared memory; every engine of a node reads the same pages. Works everywhere.
ipc    engines on the learner's GPU read its memory through CUDA handles, and copy from there.

A sender has `send(handle)`, which gives one engine the newest weights and returns a reference to wait for. What it sends is a small object
with `tensors(device)`, which the engine calls to get its weights by name.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from turnwise.cluster.start import import_ray
from turnwise.util.errors import TurnwiseError

Named = Callable[[], Iterable[tuple[str, Tensor]]]  # the learner's weights as they are now, always in the same order


class Sender(Protocol):
    """Gives engines weights. `publish` is called once per version, then `send` for each engine; one that starts later is sent the same.
    `close` comes last, when no engine is left."""

    def publish(self, version: int) -> None: ...

    def send(self, handle: Any) -> Any: ...

    def close(self) -> None: ...


# -- through Ray's shared memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """Weights as plain arrays; those of types that numpy does not know as bytes."""

    arrays: dict[str, tuple[Any, str]]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> Stored:
        return cls({name: _array(tensor.detach()) for name, tensor in named})

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """The weights on the device; on a CPU, views of memory that must not be written to."""
        return {name: _tensor(array, dtype).to(device) for name, (array, dtype) in self.arrays.items()}


def _array(tensor: Tensor) -> tuple[Any, str]:
    here = tensor.to("cpu").contiguous()
    dtype = str(here.dtype).removeprefix("torch.")
    return (here.view(torch.int16) if here.dtype == torch.bfloat16 else here).numpy(), dtype


def _tensor(array: Any, dtype: str) -> Tensor:
    if not array.flags.writeable:  # pages of Ray's store: torch warns about them, and they are only read
        array = np.ndarray(array.shape, array.dtype, buffer=memoryview(array), strides=array.strides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype == "bfloat16" else tensor


class Store:
    """One object in Ray's store per version; the previous one is dropped when no engine reads it any more."""

    def __init__(self, named: Named):
        self._named = named
        self._version, self._ref = -1, None

    def publish(self, version: int) -> None:
        self._version, self._ref = version, import_ray().put(Stored.of(self._named()))

    def send(self, handle: Any) -> Any:
        return handle.publish.remote(self._version, self._ref)

    def close(self) -> None:
        self._ref = None


# -- on the same GPU --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Handles:
    """Weights as handles of CUDA, by name and pickled. They are valid as long as the learner's process keeps them, and read where they lie.
    An engine opens the handles of a `key` once, and has them open until it gets others or ends."""

    key: str
    pickled: bytes
    gpu: str

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        if self.key not in _opened:
            close_handles()
            _opened[self.key] = self._open(device)
        return _opened[self.key]

    def _open(self, device: torch.device) -> dict[str, Tensor]:
        here = torch.cuda.current_device() if device.index is None else device.index
        if (gpu := gpu_name(here)) != self.gpu:
            raise TurnwiseError(f"the engine is on GPU {gpu} and the learner on {self.gpu}: cluster.transfer=ipc needs the same one")
        tensors = {}
        for name, (rebuild, arguments) in pickle.loads(self.pickled).items():
            placed = [*arguments]
            placed[6] = here  # the number that this GPU has in this process
            tensors[name] = rebuild(*placed)
        return tensors


_opened: dict[str, dict[str, Tensor]] = {}  # in an engine's process: the weights whose handles are open
_keys = count()


def close_handles() -> None:
    """Close the handles that this process has opened. The learner's process may free that memory only after this."""
    _opened.clear()


class Ipc:
    """Handles to the learner's own weights: nothing is copied here. The learner waits with its next update until all have read them. They
    are made once, and again if a weight is elsewhere: torch keeps a record of every handle for as long as the memory is in use."""

    def __init__(self, named: Named):
        self._named = named
        self._version = -1
        self._handles: Handles | None = None
        self._places: list[tuple[Any, ...]] = []
        self._kept: dict[str, Tensor] = {}  # handles do not keep memory alive

    def publish(self, version: int) -> None:
        from torch.multiprocessing.reductions import reduce_tensor

        self._kept = {}
        weights = {name: tensor.detach() for name, tensor in self._named()}
        torch.cuda.synchronize()
        self._version, self._kept = version, weights
        places = [_place(name, tensor) for name, tensor in weights.items()]
        if self._handles is None or places != self._places:
            pickled = pickle.dumps({name: reduce_tensor(tensor) for name, tensor in weights.items()})
            self._handles = Handles(f"{os.getpid()}.{next(_keys)}", pickled, gpu_name(torch.cuda.current_device()))
            self._places = places

    def send(self, handle: Any) -> Any:
        return handle.publish.remote(self._version, self._handles)

    def close(self) -> None:
        """The run is over and no engine reads the weights any more, so their memory is freed. Memory that is still shared when a process
        ends makes torch warn about it."""
        for tensor in self._kept.values():
            if (storage := tensor.untyped_storage()).resizable():
                storage.resize_(0)
        self._kept, self._handles, self._places = {}, None, []


def _place(name: str, tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies. Memory that was freed and used again is another place."""
    from torch.multiprocessing.reductions import StorageWeakRef

    storage = StorageWeakRef(tensor.untyped_storage())
    return name, storage, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def gpu_name(index: int) -> str:
    """The name by which all processes know a GPU."""
    return str(torch.cuda.get_device_properties(index).uuid)


# -- in the engine ----------------------------------------------------------------------------------------------------------------------


def copy_into(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the parameters of a model by name, in place. Nothing is changed if a name or a shape is wrong."""
    for name, tensor in weights.items():
        if name not in parameters:
            raise TurnwiseError(f"engine: the model has no weight {name!r}: is it another model than the learner's?")
        if parameters[name].shape != tensor.shape:
            raise TurnwiseError(
                f"engine: {name!r} has the shape {tuple(parameters[name].shape)}, and the learner's has {tuple(tensor.shape)}"
            )
    if not weights:
        return
    with torch.no_grad():  # all at once: a GPU would wait for the host between them
        torch._foreach_copy_([parameters[name] for name in weights], list(weights.values()))
