"""Micro-batches that are computed at the same time, in threads: the operations of a tiny model are too small to be shared by
several cores.

Every bit is as if one thread had computed one after another. A micro-batch stays with one thread from its first operation to its last.
Losses are computed in the order of the micro-batches, so an objective may count or draw, and gradients are added up in that order.

Every weight is part of a small graph from the beginning to the end. Otherwise two threads may wait for each other forever: when a weight is
used that no graph holds, torch makes a node for it under a lock of the weight's and needs the interpreter's lock for that, while a thread
that has the interpreter's and adds up gradients waits for the weight's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Event
from typing import TypeVar

import torch
from torch import Tensor

from turnwise.learn.forward import PackedModel
from turnwise.learn.ranks.group import Ranks
from turnwise.util.threads import at_once

Part = TypeVar("Part")
Outputs = TypeVar("Outputs")
More = TypeVar("More")
Gradients = Sequence[Tensor | None]


def workers_for(policy: PackedModel, ranks: Ranks | None) -> int:
    """How many threads compute micro-batches at the same time: a tiny model leaves cores idle. Our own layers draw no random numbers, so
    their order does not matter."""
    alone = ranks is None and policy.fused is not None and policy.device.type == "cpu"
    return at_once(torch.get_num_threads()) if alone else 1


def add_gradients(
    parts: Sequence[Part],
    workers: int,
    forward: Callable[[Part], Outputs],
    loss: Callable[[Part, Outputs], tuple[Tensor, More]],
    weights: Sequence[Tensor],
) -> list[More]:
    """Add the gradients of the loss of every part to those of `weights`. Returns what `loss` gave beside it, in the order of the parts."""
    passed = [Event() for _ in parts]  # whose loss has been computed

    def one(number: int) -> tuple[Gradients, More]:
        try:
            outputs = forward(parts[number])
            if number:
                passed[number - 1].wait()  # it began earlier, and passes whether it fails or not
            value, more = loss(parts[number], outputs)
        finally:
            passed[number].set()
        return torch.autograd.grad(value, weights, allow_unused=True), more

    results: list[More] = []
    kept = [weight.expand_as(weight) for weight in weights]  # see above
    with ThreadPoolExecutor(workers) as pool:
        numbers = iter(range(len(parts)))
        begun: deque[Future[tuple[Gradients, More]]] = deque(pool.submit(one, number) for number in islice(numbers, workers + 1))
        while begun:  # one more than there are workers, so that none of them waits; further ones would only take memory
            gradients, more = begun.popleft().result()
            begun.extend(pool.submit(one, number) for number in islice(numbers, 1))
            # add them to those of the weights as a backward pass does
            known = [(weight, gradient) for weight, gradient in zip(weights, gradients, strict=True) if gradient is not None]
            if known:
                torch.autograd.backward([weight for weight, _ in known], [gradient for _, gradient in known])
            results.append(more)
    del kept
    return results
