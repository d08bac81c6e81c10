"""One copy to the device per step, one back.

What a step needs is written into pinned memory, piece after piece, and goes to one place on the device in a single copy: recorded steps
read it there. The results of a step, tokens and log-probs, lie side by side and come back in a single copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

TURNS = 4  # host buffers: more than steps are ever under way
ALIGNED = 32  # numbers: kernels are compiled for addresses that divide by 128 bytes


def aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class Mail:
    """Room for `size` integers of 32 bits, at the same address for every step."""

    def __init__(self, size: int, device: torch.device):
        self.size = aligned(size)
        self.box = torch.zeros(self.size, dtype=torch.int32, device=device)
        self._real = device.type == "cuda"
        self._hosts = [torch.zeros(self.size, dtype=torch.int32, pin_memory=self._real) for _ in range(TURNS)]
        self._sent: list[torch.cuda.Event | None] = [None] * TURNS
        self._turn = 0

    def open(self) -> np.ndarray:
        """The host's side, to be written from its beginning. What an earlier step left there is still in it."""
        self._turn = (self._turn + 1) % TURNS
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()
        found: np.ndarray = self._hosts[self._turn].numpy()
        return found

    def send(self, size: int) -> None:
        """Copy the first `size` numbers, without waiting."""
        self.box[:size].copy_(self._hosts[self._turn][:size], non_blocking=True)
        if self._real:
            event = self._sent[self._turn] or torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event


class Results:
    """Where `lanes` lanes put their tokens and log-probs."""

    def __init__(self, lanes: int, device: torch.device):
        self.both = torch.zeros(2 * lanes, dtype=torch.int64, device=device)
        self.tokens = self.both[:lanes]
        self.logprobs = self.both[lanes:].view(torch.float32)[:lanes]


class Reply:
    """The results of a step on their way to the host, in one copy."""

    noted = None  # steps with reports run in another way

    def __init__(self, results: Results, count: int):
        self._count = count
        self._real = results.both.is_cuda
        self._host = results.both.to("cpu", non_blocking=True) if self._real else results.both.clone()
        if self._real:
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> tuple[list[int], list[float]]:
        if self._real:
            self._event.synchronize()
        tokens, logprobs = self._host.chunk(2)
        return tokens[: self._count].tolist(), logprobs.view(torch.float32)[: self._count].tolist()


class Nothing:
    """The result of a step in which nobody draws."""

    noted = None

    def wait(self) -> tuple[list[int], list[float]]:
        return [], []


def lay(sizes: Sequence[int], start: int = 0) -> list[slice]:
    """Places for pieces of these sizes, one after another, each at an aligned address."""
    places = []
    for size in sizes:
        places.append(slice(start, start + size))
        start += aligned(size)
    return places
