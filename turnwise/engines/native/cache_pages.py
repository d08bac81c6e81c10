"""Pages of cache memory: which chain holds which page, and which prompts begin with what is already in them. No tensors here.

A sequence's keys and values are in a chain of pages of `size` tokens. A page can be held by several chains at once (a shared prefix), and
what no chain holds stays readable until its memory is needed. An index of grains (`grain` tokens each, at most a page) finds, for a new
prompt, the longest prefix that is in memory: whole pages are shared, the rest of the last one is copied into a private page of the chain.

On a GPU pages are small. On a CPU a page is as long as the longest sequence, so that attention reads it in place: then nothing is
shared and everything copied, by the same rules.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from turnwise.util.prefix import common_length

ROOT = 0
SHORTEST_COPY = 4  # fewer tokens are computed as fast as they are copied


@dataclass(slots=True)
class Chain:
    """The pages of one sequence, and its tokens. The keys and values of the first `written` are (or are just being) written there. A row
    and its chain share one list of tokens, which a prompt of a long dialogue is then never copied for."""

    pages: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)  # the index's node after each of the first grains
    written: int = 0

    def common(self, ids: list[int]) -> int:
        """How many tokens of a prompt are written here."""
        return self.written if ids is self.ids else common_length(self.ids[: self.written], ids)


@dataclass(frozen=True, slots=True)
class Match:
    """What is in memory of a prompt: whole pages, then `tail` tokens at the beginning of `source`. `fresh`: some of it is being computed
    in the step that is being put together, so a copy has to wait for the next one."""

    pages: tuple[int, ...] = ()
    source: int = -1
    tail: int = 0
    nodes: tuple[int, ...] = ()
    fresh: bool = False

    def length(self, size: int) -> int:
        """How many tokens it is, with pages of that size."""
        return len(self.pages) * size + self.tail


class CachePages:
    """`count` pages of `size` tokens."""

    def __init__(self, count: int, size: int, grain: int):
        self.count, self.size, self.grain = count, size, min(grain, size)
        self._empty()

    def clear(self) -> list[Any]:
        """Forget every content. Chains made before must not be used any more. Returns what is left to free: thousands of small objects,
        which take milliseconds."""
        litter = [self._idle, self._holders, self._content, self._keys, self._follows, self._nodes, self._after]
        self._empty()
        return litter

    def _empty(self) -> None:
        self._free = list(range(self.count))  # a heap, as it is
        self._idle: OrderedDict[int, None] = OrderedDict()  # held by no chain, contents still indexed; the oldest first
        self._holders = [0] * self.count
        # By page; those that were never used have none: there are many, and every update of the weights clears all of them.
        self._content: defaultdict[int, list[int]] = defaultdict(list)
        self._keys: defaultdict[int, list[tuple[int, tuple[int, ...], int]]] = defaultdict(list)  # (node, grain, end in the page)
        self._follows: defaultdict[int, dict[int, int]] = defaultdict(dict)  # node -> where in the page it ends
        self._fresh: dict[int, int] = {}  # page -> how much of it was there before this step
        self._nodes: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (node, next grain) -> (node, page)
        self._after: dict[int, int] = {}  # node -> the page that was last seen to follow it
        self._last_node = ROOT

    @property
    def available(self) -> int:
        """Pages that are available now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Pages that some chain holds."""
        return self.count - self.available

    def needed(self, tokens: int) -> int:
        """How many pages that many tokens take."""
        return -(-tokens // self.size)

    def take(self) -> int | None:
        """An empty private page, or None."""
        if self._free:
            page = heappop(self._free)
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._erase(page, 0)
        else:
            return None
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        self._holders[page] += 1
        self._idle.pop(page, None)

    def drop(self, pages: Sequence[int]) -> None:
        """One holder fewer for each of these. The last pages of a chain are reused before its first ones."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if self._keys[page] or self._follows[page]:
                    self._idle[page] = None
                else:
                    heappush(self._free, page)

    def cut(self, chain: Chain, length: int) -> tuple[int, int] | None:
        """Shorten a chain to its first `length` tokens, to continue differently. Its last page is overwritten in place if no other chain
        holds it; otherwise it is left to the others and the chain needs a copy: (page, tokens)."""
        keep = self.needed(length)
        self.drop(chain.pages[keep:])
        del chain.pages[keep:], chain.nodes[length // self.grain :]
        chain.written = min(chain.written, length)
        inside = length % self.size
        if not inside:
            return None
        last = chain.pages[-1]
        if self._holders[last] == 1:
            self._erase(last, inside)
            return None
        chain.pages.pop()
        return last, inside

    def match(self, ids: list[int], limit: int) -> Match:
        """The longest prefix of the first `limit` ids that is in memory."""
        node, page, start = ROOT, -1, 0
        pages: list[int] = []
        nodes: list[int] = []
        fresh = False
        while start + self.grain <= limit:
            entry = self._nodes.get((node, tuple(ids[start : start + self.grain])))
            if entry is None:
                break
            node, page = entry
            nodes.append(node)
            start += self.grain
            inside = (start - 1) % self.size + 1
            fresh |= self._fresh.get(page, self.size) < inside
            if inside == self.size:
                pages.append(page)
        inside = start % self.size
        follower = self._after.get(node, -1)
        source = follower if follower >= 0 else page
        content = self._content[source] if source >= 0 else []
        tail = common_length(ids[start:limit], content[inside : self.size]) if source >= 0 else 0
        if not inside and tail < SHORTEST_COPY:
            return Match(tuple(pages), nodes=tuple(nodes), fresh=False)
        fresh |= self._fresh.get(source, self.size) < inside + tail
        return Match(tuple(pages), source, inside + tail, tuple(nodes), fresh)

    def copied(self, source: int, page: int, length: int) -> None:
        """The first `length` tokens of a page are being copied into another, empty one."""
        self._content[page] = self._content[source][:length]

    def index(self, chain: Chain) -> None:
        """Make what is written of this chain known to later prompts."""
        first = len(chain.nodes)
        for number in range(first, chain.written // self.grain):
            start = number * self.grain
            self._index_grain(chain, start, tuple(chain.ids[start : start + self.grain]))
        start = chain.written // self.grain * self.grain
        if start < chain.written:
            node = chain.nodes[-1] if chain.nodes else ROOT
            self._follow(node, chain.pages[start // self.size], start % self.size, chain.ids[start : chain.written])

    def _index_grain(self, chain: Chain, start: int, grain: tuple[int, ...]) -> None:
        node = chain.nodes[-1] if chain.nodes else ROOT
        page, inside = chain.pages[start // self.size], start % self.size
        self._follow(node, page, inside, grain)
        entry = self._nodes.get((node, grain))
        if entry is None:
            self._last_node += 1
            entry = (self._last_node, page)
            self._nodes[node, grain] = entry
            self._keys[page].append((node, grain, inside + self.grain))
        chain.nodes.append(entry[0])

    def _follow(self, node: int, page: int, inside: int, tokens: Sequence[int]) -> None:
        content = self._content[page]
        if len(content) < inside + len(tokens):
            self._fresh.setdefault(page, len(content))
            content[inside:] = tokens
        self._after[node] = page
        self._follows[page][node] = inside

    def step(self) -> None:
        """What was indexed so far is launched: copies of it made from now on are right."""
        self._fresh.clear()

    def _erase(self, page: int, length: int) -> None:
        """The page's contents from `length` on are about to be overwritten."""
        staying = []
        for key in self._keys[page]:
            node, grain, end = key
            if end <= length:
                staying.append(key)
            else:
                del self._nodes[node, grain]
        self._keys[page] = staying
        for node, inside in list(self._follows[page].items()):
            if inside >= length:
                del self._follows[page][node]
                if self._after.get(node) == page:
                    del self._after[node]
        del self._content[page][length:]
        self._fresh.pop(page, None)
