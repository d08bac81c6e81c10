"""How much memory torch's allocator needs beyond what is in use: a simulation, for a machine without a GPU.

    python benchmarks/allocator_gaps.py --out gaps.json            a minute or two

Iterations of a recipe are played as the allocations that they make: weights, a reference, the engine's cache and prompts, scoring, and
optimiser steps of several micro-batches of different lengths. The allocator is a model of torch's: blocks are taken where they fit best,
are split, and merge with free neighbours. Either it asks the GPU for pieces (`Pieces`, torch's default), of which only those that are empty
can be given back; or for pages of segments that grow (`Segments`, `expandable_segments`), of which every empty page can. Only tensors above
1 MiB are played: small ones have a pool of their own.

The result has, for each way to allocate and with and without places for gradients before the first micro-batch, the least gigabytes beyond
the peak in use with which nothing runs out. It is a model: what a GPU needs is measured by benchmarks/memory.py.
"""

from __future__ import annotations

import argparse
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results import publish

from turnwise.learn.activations import NOTHING
from turnwise.learn.shapes import SHAPES
from turnwise.planner.memory import LEARN, Demand

MIB = 2**20
PAGE = 20 * MIB  # of a segment that grows
UNIT, ROUNDED = 512, 2 * MIB
STEP = 25 * 10**6  # bytes: how exactly the least memory is found
MOST = 3 * 10**9
PROMPTS = 6  # prefills of an iteration
SAMPLED = 0.1  # of a micro-batch's tokens


class Shortage(Exception):
    """The allocator found no memory."""


@dataclass(eq=False)
class Block:
    """A range of addresses: in use, free, or (of a segment that grows) without memory."""

    start: int
    size: int
    state: str = "free"
    before: Block | None = None
    after: Block | None = None

    def cut(self, size: int) -> Block:
        """Shorten it; the rest of it, as the block that follows."""
        rest = Block(self.start + size, self.size - size, self.state, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self) -> None:
        """Become one with the block that follows."""
        assert self.after is not None
        self.size, self.after = self.size + self.after.size, self.after.after
        if self.after is not None:
            self.after.before = self


class Pieces:
    """The usual way: large tensors get pieces of their own, smaller ones share pieces of 20 MiB."""

    def __init__(self, limit: float):
        self.limit, self.held, self.used, self.peak = limit, 0, 0, 0
        self._free: list[tuple[int, int, Block]] = []  # by size, then by address
        self._next = 0

    def take(self, size: int) -> Block:
        """Memory for a tensor of so many bytes."""
        size = -(-size // UNIT) * UNIT
        found = self._fitting(size) or self._more(size)
        if found is None:
            self.release()
            found = self._fitting(size) or self._more(size)
        if found is None:
            raise Shortage(f"{size} bytes, of which {self.limit - self.held} are left and {self.held - self.used} are in gaps")
        self._forget(found)
        if found.size - size >= self._least_rest:
            self._note(found.cut(size))
        found.state = "used"
        self.used += found.size
        self.peak = max(self.peak, self.used)
        return found

    def give(self, block: Block) -> None:
        """A tensor is gone."""
        self.used -= block.size
        block.state = "free"
        self._merged(block)

    def release(self) -> None:
        """Give back pieces that are empty."""
        for _, _, block in list(self._free):
            if block.before is None and block.after is None:
                self._forget(block)
                self.held -= block.size

    _least_rest = MIB

    def _fitting(self, size: int) -> Block | None:
        place = bisect_left(self._free, size, key=lambda entry: entry[0])
        return self._free[place][2] if place < len(self._free) else None

    def _more(self, size: int) -> Block | None:
        size = PAGE if size < PAGE // 2 else -(-size // ROUNDED) * ROUNDED
        if self.held + size > self.limit:
            return None
        block = Block(self._next, size)
        self._next += size
        self.held += size
        self._note(block)
        return block

    def _note(self, block: Block) -> None:
        insort(self._free, (block.size, block.start, block), key=lambda entry: entry[:2])

    def _forget(self, block: Block) -> None:
        place = bisect_left(self._free, (block.size, block.start), key=lambda entry: entry[:2])
        del self._free[place]

    def _merged(self, block: Block) -> Block:
        """One free block with its free neighbours."""
        if block.before is not None and block.before.state == "free":
            block = block.before
            self._forget(block)
            block.absorb()
        if block.after is not None and block.after.state == "free":
            self._forget(block.after)
            block.absorb()
        self._note(block)
        return block


class Segments(Pieces):
    """One range of addresses that pages are added to, and from which pages that are empty are given back."""

    _least_rest = UNIT

    def __init__(self, limit: float):
        super().__init__(limit)
        self._first = Block(0, 2**50, "empty")

    def release(self) -> None:
        for _, _, block in list(self._free):
            first, last = -(-block.start // PAGE) * PAGE, (block.start + block.size) // PAGE * PAGE
            if last <= first:
                continue
            self._forget(block)
            if first > block.start:
                rest = block.cut(first - block.start)
                self._note(block)
                block = rest
            if block.start + block.size > last:
                self._note(block.cut(last - block.start))
            self.held -= block.size
            block.state = "empty"
            while block.after is not None and block.after.state == "empty":
                block.absorb()
            if block.before is not None and block.before.state == "empty":
                block.before.absorb()

    def _more(self, size: int) -> Block | None:
        """The first row of free and empty blocks that is long enough, with pages where it has none."""
        if self.held + size > self.limit:
            return None
        start: Block | None = self._first
        while start is not None:
            end, length = start, 0
            while end is not None and end.state != "used" and length < size:
                length, end = length + end.size, end.after  # type: ignore[assignment]
            if length >= size:
                return self._backed(start, size)
            start = end if end is not None and end is not start else start.after
            while start is not None and start.state == "used":
                start = start.after
        return None

    def _backed(self, block: Block, size: int) -> Block | None:
        while block.state == "empty" or block.size < size:
            empty = block if block.state == "empty" else block.after
            assert empty is not None and empty.state == "empty"
            wanted = size - (0 if empty is block else block.size)
            pages = min(empty.size, -(-wanted // PAGE) * PAGE)
            if self.held + pages > self.limit:
                return None
            if pages < empty.size:
                empty.cut(pages)
            self.held += pages
            empty.state = "free"
            block = self._merged(empty)
        return block


# -- what an iteration allocates -------------------------------------------------------------------------------------------------------


@dataclass
class Workload:
    """Iterations with the settings of a demand: adapters and weights of 4 bits are left out."""

    memory: Pieces
    demand: Demand
    reserve: bool
    seed: int = 0
    micro_batches: int = 10
    held: list[Block] = field(default_factory=list)

    def play(self, iterations: int = 3, steps: int = 2) -> None:
        demand, take, give = self.demand, self.memory.take, self.memory.give
        self.random = random.Random(self.seed)
        for width in (demand.width, 4 if demand.place == "device" else 0, demand.width if demand.reference == "device" else 0):
            self.held += [take(width * size) for size in self.matrices() if width]
        cache, has_moments = None, False
        for _ in range(iterations):
            cache = cache or take(demand.cache)
            self.prompts()
            if demand.sleeps:
                give(cache)
                cache = None
                self.memory.release()
            for _ in range(steps):
                self.step()
                if not has_moments and demand.place == "device":  # they stay from the first step on
                    self.held += [take(4 * size) for size in self.matrices() for _ in range(2)]
                has_moments = True
                self.free(self.gradients)

    def matrices(self) -> list[int]:
        """Numbers of each weight that is one tensor: the output layer, and four products of each layer."""
        shape = self.demand.shape
        layer = [shape.hidden * (shape.queries + 2 * shape.keys), shape.hidden * shape.queries]
        layer += [2 * shape.hidden * shape.middle, shape.hidden * shape.middle]
        return [shape.head, *layer * shape.layers]

    def rows(self, tokens: int) -> tuple[int, int, int, int]:
        """Bytes of a residual, of query with key and value, of what attention gives, and of half of what the activation is given."""
        shape, width = self.demand.shape, self.demand.width
        return tuple(width * tokens * size for size in (shape.hidden, shape.queries + 2 * shape.keys, shape.queries, shape.middle))  # type: ignore[return-value]

    def free(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.memory.give(block)

    def prompts(self) -> None:
        take = self.memory.take
        for _ in range(PROMPTS):
            residual, _, _, inner = self.rows(self.random.randint(self.demand.prefill // 8, self.demand.prefill))
            self.free([take(residual), take(2 * inner), take(inner)])
            self.free([take(4 * self.demand.slots * self.demand.shape.words)])

    def step(self) -> None:
        self.gradients = [self.memory.take(4 * size) for size in self.matrices()] if self.reserve else []
        for number in range(self.micro_batches):
            self.micro_batch(int(self.demand.tokens * self.random.uniform(0.75, 1.0)), first=number == 0 and not self.reserve)

    def logits(self, tokens: int) -> None:
        shape, left = self.demand.shape, int(SAMPLED * tokens)
        while left > 0:
            rows = min(left, max(1, self.demand.logits // shape.words))
            self.free([self.memory.take(4 * rows * shape.words), self.memory.take(2 * rows * shape.words)])
            left -= rows

    def micro_batch(self, tokens: int, first: bool) -> None:
        """Forward and backward; the first of a step makes gradients as it goes, unless they have places."""
        take, give, demand = self.memory.take, self.memory.give, self.demand
        residual, heads, mixed, inner = self.rows(tokens)
        output, *sizes = self.matrices()
        kept: list[tuple[Block, list[Block]]] = []
        layers = demand.shape.layers

        def made(size: int) -> None:
            if first:
                self.gradients.append(take(4 * size))

        def second_half(forward: bool) -> list[Block]:
            normed, both = take(residual), take(2 * inner)
            if forward:
                give(normed)
                self.free([take(inner), take(residual)])
                return [both]
            return [both, normed]

        def first_half(forward: bool) -> list[Block]:
            normed, joint = take(residual), take(heads)
            if forward:
                give(normed)
            out = take(mixed)
            if forward:
                give(take(residual))
                return [joint, out]
            return [joint, out, normed]

        halves: list[tuple[Callable[[bool], list[Block]], int]] = [(first_half, demand.kept.attention), (second_half, demand.kept.mlp)]
        for number in range(layers):
            for half, many in halves:
                own = half(True)
                if layers - number > many:
                    self.free(own)
                    own = []
                kept.append((take(residual), own))
        self.logits(tokens)
        made(output)
        self.logits(tokens)
        slope = take(residual)
        while kept:
            second = len(kept) % 2 == 0
            before, own = kept.pop()
            own = own or (second_half if second else first_half)(False)
            large, products = (inner, sizes[2:4]) if second else (mixed, sizes[0:2])
            work = [take(large), take(large)]
            made(products[1])
            work.append(take(2 * inner if second else heads))
            self.free([*own, *work[:2]])
            made(products[0])
            following = take(residual)
            self.free([work[2], before, slope])
            slope = following
        give(slope)


# -- what is needed --------------------------------------------------------------------------------------------------------------------

WAYS: dict[str, type[Pieces]] = {"pieces": Pieces, "growing segments": Segments}


def plays(way: str, demand: Demand, reserve: bool, limit: float, seed: int = 0) -> int | None:
    """The peak of what is in use; None if memory runs out."""
    memory = WAYS[way](limit)
    try:
        Workload(memory, demand, reserve, seed).play()
    except Shortage:
        return None
    return memory.peak


def needed(way: str, demand: Demand, reserve: bool, seed: int = 0) -> int:
    """The least bytes beyond the peak in use with which nothing runs out, in steps of 25 MB."""
    peak = plays(way, demand, reserve, float("inf"), seed)
    assert peak is not None
    steps = range(MOST // STEP)
    return STEP * bisect_left(steps, True, key=lambda number: plays(way, demand, reserve, peak + number * STEP, seed) is not None)


SMALL = Demand(SHAPES["0.5b"], tokens=4096, logits=2**26, kept=NOTHING, cache=15 * 10**8, sleeps=True)
LARGER = Demand(SHAPES["1.5b"], tokens=16384, kept=NOTHING, cache=3 * 10**9, place="host")
CASES = {
    "0.5b, optimiser on the GPU, everything computed again": SMALL,
    "0.5b, optimiser in host memory, everything kept": replace(SMALL, place="host", attention=24, mlp=24, cache=275 * 10**7, sleeps=False),
    "1.5b, optimiser in host memory, everything computed again": LARGER,
    "1.5b, optimiser in host memory, everything kept": replace(
        LARGER, tokens=4096, piece=2**26, attention=28, mlp=28, cache=144 * 10**8, sleeps=True
    ),
}


def gaps_of(demand: Demand) -> int:
    """What the prediction counts for gaps during an update."""
    return next(term for term in demand.terms if term.name == "allocator's gaps").bytes[LEARN]


def measure(demand: Demand, seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"predicted_gaps_gb": round(gaps_of(demand) / 1e9, 3)}
    for way in WAYS:
        for reserve in (False, True):
            sizes = [needed(way, demand, reserve, seed) / 1e9 for seed in range(seeds)]
            found[way + (", places for gradients" if reserve else "")] = sizes
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="orders of lengths that are played")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    publish({name: measure(demand, options.seeds) for name, demand in CASES.items()}, options.out)


if __name__ == "__main__":
    main()
