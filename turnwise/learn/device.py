"""Small torch helpers: random numbers from a seed, and arrays for a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def rng_scope(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Inside the block, random numbers on the CPU, and on the GPU if `device` is one, depend on the seed alone. Afterwards, they go on as
    if the block had not been. `torch.manual_seed` would also note the whole stack for each kind of device that is not in use."""
    gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            torch.cuda.manual_seed_all(seed)
        yield


def to_device(array: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """An array or tensor on the device. What goes to a GPU goes through pinned memory: otherwise the host would wait until the GPU has
    computed all that it was given before, and the GPU would then wait for the host."""
    tensor = torch.as_tensor(array, dtype=dtype)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
