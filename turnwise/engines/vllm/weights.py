"""How weights reach a vLLM engine. `VllmEngine.publish` (engine.py) pauses vLLM, sends one round of weights by a `Route` of this file,
drops the cache and resumes.

Weights go under the names of the model's checkpoint, as vLLM loads them: whole tensors, adapters merged, one layer after the other. Each
route is one class, for one whole round:

| route | for |
|---|---|
| `Local` | a worker in this process: tensors are passed on as they are, on any device |
| `Ipc` | workers in other processes of this machine (tensor parallelism): CUDA handles, a copy per GPU, some layers at a time |
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.module import active_adapters, inner_model
from turnwise.engines.vllm.compat import LOCAL, Core
from turnwise.util.errors import TurnwiseError

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")

Pairs = Iterable[tuple[str, Tensor]]


def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights of a module, in the order of its layers; tied ones once. Adapters that are active are added to their layers."""
    root = inner_model(model)
    modules = dict(root.named_modules(remove_duplicate=False))
    for name, parameter in root.named_parameters():
        if ".lora_" in name:
            continue
        weight = parameter.detach()
        weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        owner, _, kind = name.rpartition(".")
        if kind == "weight" and owner.endswith(".base_layer"):
            weight = _merged(weight, modules[owner.removesuffix(".base_layer")])
        yield plain_name(name), weight


def plain_name(name: str) -> str:
    """A parameter's name in the checkpoint."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name.replace(".base_layer.", ".")


def _merged(weight: Tensor, layer: Any) -> Tensor:
    """A layer's weight with its active adapters, computed in float32."""
    adapters = active_adapters(layer)
    if not adapters:
        return weight
    with torch.no_grad():
        return sum((up.float() @ down.float() * scale for down, up, scale in adapters), weight.float()).to(weight.dtype)


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a complete set of weights."""
    return {plain_name(name): tuple(parameter.shape) for name, parameter in inner_model(model).named_parameters() if ".lora_" not in name}


def checked(weights: Mapping[str, Tensor] | Pairs, shapes: Mapping[str, tuple[int, ...]], tied: bool) -> list[tuple[str, Tensor]]:
    """Weights in the order of the layers, complete and of the right shapes; otherwise an error, and nothing has been touched. Tied
    weights may be given twice."""
    by_name = {plain_name(name): tensor for name, tensor in (weights.items() if isinstance(weights, Mapping) else weights)}
    if tied and "lm_head.weight" not in shapes:
        by_name.pop("lm_head.weight", None)
    if unknown := [name for name in by_name if name not in shapes]:
        raise TurnwiseError(f"engine: the model has no weights {', '.join(unknown[:3])!r} ({len(unknown)} of {len(by_name)} are unknown)")
    if missing := [name for name in shapes if name not in by_name]:
        raise TurnwiseError(f"engine: {len(missing)} of the model's weights are missing in what was published, among them {missing[0]!r}")
    for name, shape in shapes.items():
        if tuple(by_name[name].shape) != shape:
            raise TurnwiseError(f"engine: {name!r} has the shape {shape} in the model, and {tuple(by_name[name].shape)} was published")
    return [(name, by_name[name].detach()) for name in shapes]


@contextmanager
def config_folder(model: Any) -> Iterator[str]:
    """A folder that contains only a model's config, from which vLLM makes its model."""
    inner = inner_model(model)
    with TemporaryDirectory(prefix="turnwise-vllm-") as folder:
        inner.config.save_pretrained(folder)
        path = Path(folder) / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["architectures"] = config.get("architectures") or [type(inner).__name__]
        path.write_text(json.dumps(config), encoding="utf-8")
        yield folder


CHUNK = 1 << 30  # bytes that are shared at a time


class Route(ABC):
    """Sends one set of weights, chunk by chunk. `backend` is what vLLM's engine must be made with."""

    backend: str

    def begin(self, core: Core) -> None:
        core.rpc("init_weight_transfer_engine", init_info={})

    def send(self, core: Core, pairs: Pairs) -> None:
        core.rpc("start_weight_update")
        for chunk in chunks(pairs, CHUNK):
            self.update(core, chunk)
        core.rpc("finish_weight_update")

    @abstractmethod
    def update(self, core: Core, chunk: Sequence[tuple[str, Tensor]]) -> None: ...


class Local(Route):
    """The one worker is in this process."""

    backend = LOCAL

    def update(self, core: Core, chunk: Sequence[tuple[str, Tensor]]) -> None:
        core.rpc("update_weights", update_info={"weights": chunk})


class Ipc(Route):
    """Workers in other processes, one per GPU. Each finds the handle of its own GPU by the GPU's id."""

    backend = "ipc"

    def __init__(self, tensor_parallel: int):
        self._gpus = range(tensor_parallel)

    def update(self, core: Core, chunk: Sequence[tuple[str, Tensor]]) -> None:
        copies = [[_copy(tensor, gpu) for gpu in self._gpus] for _, tensor in chunk]
        info = {
            "names": [name for name, _ in chunk],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk],
            "shapes": [list(tensor.shape) for _, tensor in chunk],
            "ipc_handles": [dict(map(_handle, on_gpus)) for on_gpus in copies],
        }
        core.rpc("update_weights", update_info=info)
        del copies  # only now: a handle does not keep its memory alive

    def send(self, core: Core, pairs: Pairs) -> None:
        super().send(core, pairs)
        torch.cuda.ipc_collect()


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


def _handle(tensor: Tensor) -> tuple[str, tuple[Any, ...]]:
    """A GPU's id and the handle of a tensor on it."""
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(tensor)
    return str(torch.cuda.get_device_properties(tensor.device).uuid), arguments


def _copy(tensor: Tensor, gpu: int) -> Tensor:
    """A tensor on one of the GPUs; the same tensor if it is there already."""
    return tensor.to(f"cuda:{gpu}").contiguous()
