"""How weights reach vLLM's workers: one class per route, each for one whole round.

| route | for |
|---|---|
| `local` | workers in this process: tensors are passed on as they are, on any device |
| `ipc` | workers in other processes of this machine (tensor parallelism): CUDA handles, a copy per GPU, some layers at a time |
| `reload` | any workers: a checkpoint on disk. Slow; used as the reference for comparisons |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor

from turnwise.engines.vllm.compat import LOCAL, Core
from turnwise.engines.vllm.weights import save_for_reload
from turnwise.util.errors import TurnwiseError

ROUTES = ("auto", "local", "ipc", "reload")
CHUNK = 1 << 30  # bytes that are shared at a time
Pairs = Iterable[tuple[str, Tensor]]


class Route(Protocol):
    """Sends one set of weights. `backend` is what vLLM's engine must be made with."""

    backend: str | None

    def begin(self, core: Core) -> None: ...

    def send(self, core: Core, pairs: Pairs, label: str) -> None: ...


class Local:
    """Workers in this process."""

    backend: str | None = LOCAL

    def begin(self, core: Core) -> None:
        core.init_weight_transfer_engine({})

    def send(self, core: Core, pairs: Pairs, label: str) -> None:
        core.start_weight_update()
        for chunk in chunks(pairs, CHUNK):
            core.update_weights({"weights": chunk})
        core.finish_weight_update(label)


class Ipc:
    """Workers in other processes, one per GPU. Each finds the handle of its own GPU by the GPU's id."""

    backend: str | None = "ipc"

    def __init__(self, tensor_parallel: int):
        self._gpus = range(tensor_parallel)

    def begin(self, core: Core) -> None:
        core.init_weight_transfer_engine(core.release.ipc_setup)

    def send(self, core: Core, pairs: Pairs, label: str) -> None:
        core.start_weight_update()
        for chunk in chunks(pairs, CHUNK):
            kept = [[_copy(tensor, gpu) for gpu in self._gpus] for _, tensor in chunk]
            core.update_weights(
                {
                    "names": [name for name, _ in chunk],
                    "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk],
                    "shapes": [list(tensor.shape) for _, tensor in chunk],
                    "ipc_handles": [dict(_handle(copy) for copy in copies) for copies in kept],
                }
            )
            del kept  # only now: a handle does not keep its memory alive
        core.finish_weight_update(label)
        torch.cuda.ipc_collect()


class Reload:
    """Any workers, through a folder on disk."""

    backend: str | None = None

    def __init__(self, model: Any):
        self._model = model

    def begin(self, core: Core) -> None:
        """Nothing to set up."""

    def send(self, core: Core, pairs: Pairs, label: str) -> None:
        with TemporaryDirectory(prefix="turnwise-weights-") as folder:
            save_for_reload(self._model, pairs, folder)
            core.reload(folder)


def choose(name: str, tensor_parallel: int, model: Any) -> Route:
    """A route by its name; auto is the fastest one."""
    if name not in ROUTES:
        raise TurnwiseError(f"engine.options.transfer takes {', '.join(ROUTES)}, not {name!r}")
    if name == "local" and tensor_parallel > 1:
        raise TurnwiseError("engine.options.transfer=local is for one GPU: with tensor_parallel, workers are other processes (use auto)")
    if name == "ipc" and tensor_parallel == 1:
        raise TurnwiseError("engine.options.transfer=ipc is for tensor_parallel of 2 and more: one worker runs in this process (use auto)")
    if name == "auto":
        name = "local" if tensor_parallel == 1 else "ipc"
    made: dict[str, Route] = {"local": Local(), "ipc": Ipc(tensor_parallel), "reload": Reload(model)}
    return made[name]


def chunks(pairs: Pairs, most: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The pairs in order, in chunks of at most this many bytes, or of one tensor."""
    part: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in pairs:
        bytes_ = tensor.numel() * tensor.element_size()
        if part and size + bytes_ > most:
            yield part
            part, size = [], 0
        part.append((name, tensor))
        size += bytes_
    if part:
        yield part


def _copy(tensor: Tensor, gpu: int) -> Tensor:
    """A tensor on one of the GPUs; the same tensor if it is there already."""
    return tensor.to(f"cuda:{gpu}").contiguous()


def _handle(tensor: Tensor) -> tuple[str, tuple[Any, ...]]:
    """A GPU's id and the handle of a tensor on it."""
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(tensor)
    return str(torch.cuda.get_device_properties(tensor.device).uuid), arguments
