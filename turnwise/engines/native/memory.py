"""Where the cache of keys and values is sized: `make_runner` gives the runner of a device as many pages as the memory allows. The runner
allocates them when they are first needed (`GpuRunner.cache`, `CpuRunner.cache`) and frees them in `sleep`."""

from __future__ import annotations

import torch

from turnwise.engines.native.cpu_runner import CpuRunner
from turnwise.engines.native.prompt_sizes import capture_bytes
from turnwise.engines.native.requests import Runner
from turnwise.engines.native.weights import Weights
from turnwise.kernels.cache_8bit import stored
from turnwise.util.errors import TurnwiseError
from turnwise.util.threads import all_memory as _all_memory

CPU_PART = 0.25  # of all memory; what no row uses is never touched
GPU_PART = 0.5
GPU_PAGE = 64  # tokens


def make_runner(weights: Weights, slots: int, longest: int, memory: float | None, graphs: bool, kind: str = "model") -> Runner:
    """The runner for the device that the weights are on, with as many pages as the memory allows and the rows can use. `kind`: what keys
    and values are stored as (`cache_8bit.KINDS`)."""
    if memory is not None and memory <= 0:
        raise TurnwiseError(f"engine: cache_memory takes bytes, or a part of the free memory up to 1.0, not {memory!r}")
    if weights.device.type == "cuda":
        from turnwise.engines.native.gpu_runner import GpuRunner

        graphs = graphs and _capturable(weights)
        taken = capture_bytes(weights, slots) if graphs else 0
        budget = _bytes(memory if memory is not None else GPU_PART, weights.device, taken)
        pages = _pages(budget, weights, kind, GPU_PAGE, -(-longest // GPU_PAGE) * slots * 2)
        return GpuRunner(weights, slots, longest, pages, GPU_PAGE, graphs, kind=kind)
    budget = _bytes(memory, weights.device) if memory is not None else int(CPU_PART * _all_memory())
    return CpuRunner(weights, slots, _pages(budget, weights, kind, longest, 2 * slots), longest, kind)


def _capturable(weights: Weights) -> bool:
    """Whether steps can be captured as CUDA graphs. The product over experts has a kernel for bf16 alone; in another precision it asks the
    host how many tokens each expert has."""
    return weights.dtype == torch.bfloat16 or all(layer.experts is None for layer in weights.layers)


def _pages(budget: int, weights: Weights, kind: str, size: int, wanted: int) -> int:
    """The number of pages of `size` tokens that fit into `budget` bytes; not more than wanted."""
    shape = weights.shape
    dtype, width = stored(kind, weights.dtype, shape.head_dim)
    token = 2 * shape.layers * shape.kv_heads * width * dtype.itemsize
    if budget < token * size:
        raise TurnwiseError(
            f"engine: cache_memory of {budget / 2**20:.1f} MiB holds {budget // token} tokens, and the cache comes in pages of {size}: "
            "give more, or a smaller max_length"
        )
    return min(int(budget // (token * size)), wanted)


def _bytes(memory: float, device: torch.device, taken: int = 0) -> int:
    """The cache's memory. A part is one of what is free besides the bytes that are `taken` by captured steps."""
    if memory > 1:
        return int(memory)
    if device.type != "cuda":
        raise TurnwiseError(
            f"engine: cache_memory={memory:g} is a part of a GPU's free memory. On a CPU, give a number of bytes or leave it out"
        )
    return max(0, int(memory * (free_bytes(device) - taken)))


def free_bytes(device: torch.device) -> int:
    """What a process can still allocate: free on the device or cached by torch, within its share."""
    return _reachable(device) - int(torch.cuda.memory_allocated(device))


def own_bytes(device: torch.device) -> int | None:
    """What a process can have of a GPU, with what it has allocated: what others and CUDA itself leave, within its share. None on a CPU."""
    return _reachable(device) if device.type == "cuda" else None


def _reachable(device: torch.device) -> int:
    device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    free, total = torch.cuda.mem_get_info(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    reachable: int = min(free + torch.cuda.memory_reserved(device), share)
    return reachable
