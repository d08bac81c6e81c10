"""Which rows of a decode step read the same pages: groups whose common prefix is read once (cascade). No tensors on a device here.

Attempts of one group begin with the same prompt, so their chains begin with the same pages. A group's queries are attended to these pages
together, and each row attends to its own rest alone. That pays if it saves reading enough: see `FEWEST_ROWS`, `FEWEST_PAGES` and `WORTH`.
With few rows it does not: a GPU's cache holds what they have in common, and reading together takes another kernel per layer. So unless it
is asked for, only steps with `LARGE` many lanes do so, and only if they save `LEAST` bytes per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.engines.native.cache_pages import Chain
from turnwise.engines.native.requests import RunningRequest
from turnwise.util.prefix import common_length

FEWEST_ROWS = 4  # of a group
FEWEST_PAGES = 4  # that they have in common
WORTH = 0.25  # of all tokens that a step would read: a step that saves less runs as it is
LARGE = 256  # lanes
LEAST = 300e6  # between 115 MB, which cost 0.2 ms per step on an H200, and 459 MB, which saved 0.5 ms
FEWEST_LANES = 8  # that a program must be able to take; models with more query heads per key head have no cascade
ROWS = 64  # of a program: queries of several lanes


@dataclass(frozen=True, slots=True)
class Group:
    """Lanes of a step that begin with the same pages."""

    lanes: tuple[int, ...]
    pages: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How plans are written down for kernels: `blocks` of up to `members` lanes for a step of `lanes` lanes."""

    lanes: int
    members: int

    @classmethod
    def of(cls, lanes: int, heads_per_key: int) -> Layout | None:
        """None if a program would take too few lanes."""
        members = ROWS // heads_per_key
        return cls(lanes, members) if members >= FEWEST_LANES and lanes >= FEWEST_ROWS else None

    @property
    def blocks(self) -> int:
        return self.lanes // FEWEST_ROWS

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of a plan: for every lane, how many pages are read for it; for every block, how many pages it reads, and its lanes."""
        return self.lanes, self.blocks * (1 + self.members)

    def write(self, groups: Sequence[Group]) -> tuple[np.ndarray, np.ndarray]:
        """A plan. Blocks that are not needed read no page; missing lanes are -1."""
        shared, blocks = np.zeros(self.lanes, dtype=np.int32), np.full((self.blocks, 1 + self.members), -1, dtype=np.int32)
        blocks[:, 0] = 0
        number = 0
        for group in groups:
            for start in range(0, len(group.lanes), self.members):
                lanes = group.lanes[start : start + self.members]
                if number == self.blocks:
                    return shared, blocks.ravel()
                blocks[number, : 1 + len(lanes)] = [group.pages, *lanes]
                shared[list(lanes)] = group.pages
                number += 1
        return shared, blocks.ravel()


def groups_of(chains: Sequence[list[int]]) -> list[Group]:
    """The groups that save most, by the complete pages of each lane: those with the most saved pages first."""
    alike: dict[int, list[int]] = {}  # lanes of a group have the last of the fewest pages in common, too
    for lane, pages in enumerate(chains):
        if len(pages) >= FEWEST_PAGES:
            alike.setdefault(pages[FEWEST_PAGES - 1], []).append(lane)
    found = [group for lanes in alike.values() for group in _best(lanes, 0, chains)[1]]
    return sorted(found, key=lambda group: -_saved(group))


def _saved(group: Group) -> int:
    return (len(group.lanes) - 1) * group.pages


def _best(lanes: list[int], known: int, chains: Sequence[list[int]]) -> tuple[int, list[Group]]:
    """What is saved by these lanes, which have `known` pages in common: as one group, or as those that they fall into."""
    if len(lanes) < FEWEST_ROWS:
        return 0, []
    ends = [chains[lane][known:] for lane in lanes]
    common = known + common_length(min(ends), max(ends))  # the first and the last in order have the least in common
    together = Group(tuple(lanes), common)
    apart: dict[int, list[int]] = {}
    for lane in lanes:
        if len(chains[lane]) > common:
            apart.setdefault(chains[lane][common], []).append(lane)
    parts = [_best(own, common + 1, chains) for own in apart.values()]
    split = sum(saved for saved, _ in parts)
    if common >= FEWEST_PAGES and _saved(together) >= split:
        return _saved(together), [together]
    return split, [group for _, groups in parts for group in groups]


class Planner:
    """The plan of a step, which stays the same as long as its rows do."""

    def __init__(self, page_size: int, token_bytes: int = 0):
        """`token_bytes`: of a token's key and value in a layer, if a step has to save `LEAST`."""
        self._size, self._bytes = page_size, token_bytes
        self._rows: list[tuple[RunningRequest, Chain]] = []  # a row may come back with another chain, and a chain with another row
        self._groups: list[Group] = []

    def groups(self, rows: Sequence[RunningRequest]) -> list[Group]:
        """The groups of a step whose lanes are these rows; none if they save too little."""
        known = len(rows) == len(self._rows) and all(
            row is other and row.chain is chain for row, (other, chain) in zip(rows, self._rows, strict=True)
        )
        if not known:
            self._rows = [(row, row.chain) for row in rows]
            self._groups = groups_of([row.chain.pages[: row.computed // self._size] for row in rows])
        saved = sum(map(_saved, self._groups)) * self._size
        if not saved or (self._bytes and saved * self._bytes < LEAST):
            return []
        return self._groups if saved >= WORTH * sum(row.computed for row in rows) else []
