"""Torch's random numbers from a seed, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawing_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Inside the block, what is drawn on the CPU, and on the GPU if `device` is one, depends on the seed alone. Afterwards, random numbers
    go on as if the block had not been. `torch.manual_seed` would also note the whole stack for each kind of device that is not in use."""
    gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            torch.cuda.manual_seed_all(seed)
        yield
