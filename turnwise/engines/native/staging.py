"""The pinned staging buffer: one copy to the device per step, one back.

What a step needs is written into pinned memory, piece after piece, and goes to one address on the device in a single copy: captured steps
read it there. The results of a step, tokens and log-probs, lie side by side and come back in a single copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from turnwise.engines.sampling import Noted

TURNS = 4  # host buffers: more than steps are ever under way
ALIGNED = 32  # numbers: kernels are compiled for addresses that divide by 128 bytes


def aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class StagingBuffer:
    """Room for `size` integers of 32 bits, at the same address for every step."""

    def __init__(self, size: int, device: torch.device):
        self.size = aligned(size)
        self.device = torch.zeros(self.size, dtype=torch.int32, device=device)
        self._pinned = device.type == "cuda"
        self._hosts = [torch.zeros(self.size, dtype=torch.int32, pin_memory=self._pinned) for _ in range(TURNS)]
        self._sent: list[torch.cuda.Event | None] = [None] * TURNS
        self._turn = 0

    def open(self) -> np.ndarray:
        """The host's side, to be written from its beginning. What an earlier step left there is still in it."""
        self._turn = (self._turn + 1) % TURNS
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()
        host: np.ndarray = self._hosts[self._turn].numpy()
        return host

    def send(self, size: int) -> None:
        """Copy the first `size` numbers, without waiting."""
        self.device[:size].copy_(self._hosts[self._turn][:size], non_blocking=True)
        if self._pinned:
            event = self._sent[self._turn] or torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event


class Results:
    """Where a batch of so many rows puts its tokens and log-probs."""

    def __init__(self, batch: int, device: torch.device):
        self.both = torch.zeros(2 * batch, dtype=torch.int64, device=device)
        self.tokens = self.both[:batch]
        self.logprobs = self.both[batch:].view(torch.float32)[:batch]


class StagedResult:
    """The results of a step on their way to the host, in one copy. `noted`: what is reported about the tokens."""

    def __init__(self, results: Results, count: int, noted: Noted | None = None):
        self.noted, self._count = noted, count
        self._event = torch.cuda.Event() if results.both.is_cuda else None
        self._host = results.both.to("cpu", non_blocking=True) if self._event is not None else results.both.clone()
        if self._event is not None:
            self._event.record()

    def wait(self) -> tuple[list[int], list[float]]:
        if self._event is not None:
            self._event.synchronize()
        tokens, logprobs = self._host.chunk(2)
        return tokens[: self._count].tolist(), logprobs.view(torch.float32)[: self._count].tolist()


def lay(sizes: Sequence[int], start: int = 0) -> list[slice]:
    """Slices for pieces of these sizes, one after another, each at an aligned address."""
    slices = []
    for size in sizes:
        slices.append(slice(start, start + size))
        start += aligned(size)
    return slices
