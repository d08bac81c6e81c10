"""The pages of running rows and of idle trajectories.

A row gets what is in memory of its tokens: the chain of its own trajectory, or a prefix that another row has computed. What a finished row
computed is kept for the next turn of its trajectory. If pages run out, the least recently used trajectory loses its pages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from turnwise.engines.native.cache_pages import CachePages, Chain, Match
from turnwise.engines.native.requests import RunningRequest

WORTH_A_STEP = 32  # tokens: with fewer in common, a row does not wait until another one has computed them


class Chains:
    """Chains over `pages`. `kept` are those of idle trajectories, the least recently used first. `copies` of the beginnings of pages are
    made before the next step (source, target, tokens)."""

    def __init__(self, pages: CachePages):
        self.pages = pages
        self.kept: OrderedDict[int, Chain] = OrderedDict()
        self.copies: list[tuple[int, int, int]] = []

    def clear(self) -> list[Any]:
        """Forget every content. Chains made before must not be used any more. Returns what is left to free."""
        litter = [self.kept, *self.pages.clear()]
        self.kept = OrderedDict()
        self.copies.clear()
        return litter

    def known(self, sequence: int) -> list[int] | None:
        """The tokens that are kept of a trajectory, for one request that continues it: it may append its own. None if there are none, or
        if another request has done so."""
        chain = self.kept.get(sequence)
        return chain.ids if chain is not None and len(chain.ids) == chain.written else None

    def release(self, sequence: int) -> None:
        """Drop what is kept of a trajectory."""
        if (chain := self.kept.pop(sequence, None)) is not None:
            self.pages.drop(chain.pages)

    def leave(self, row: RunningRequest, good: bool) -> None:
        """A row is finished: what it computed is kept for the next turn of its trajectory, if it is `good` and wanted."""
        chain = row.chain
        chain.written = min(row.computed, len(row.ids))
        chain.ids = row.ids
        del chain.ids[chain.written :]
        self.pages.drop(chain.pages[self.pages.needed(chain.written) :])
        del chain.pages[self.pages.needed(chain.written) :]
        if good:
            self.pages.index(chain)
        self.release(row.request.sequence)
        if row.keeps and good:
            self.kept[row.request.sequence] = chain
        else:
            self.pages.drop(chain.pages)

    def find_prefix(self, row: RunningRequest) -> bool | None:
        """Give the row what is in memory of its tokens. None: wait a step; False: no page for a copy."""
        limit = row.length - 1  # the last token must be computed: the next one is drawn from it
        last_turn = self.kept.pop(row.request.sequence, None)
        common = min(limit, last_turn.common(row.ids)) if last_turn is not None else 0
        match = Match() if last_turn is not None and common == min(last_turn.written, limit) else self.pages.match(row.ids, limit)
        if match.fresh and match.length(self.pages.size) < WORTH_A_STEP:
            match = Match()
        matched = match.length(self.pages.size)
        if last_turn is not None and (common >= matched or match.fresh):
            row.chain, row.computed = last_turn, common
            copy = self.pages.cut(last_turn, common)
            last_turn.ids = row.ids
            return True if copy is None else self._copy(row.chain, *copy)
        if last_turn is not None:
            self.pages.drop(last_turn.pages)
        if match.fresh:
            return None
        row.chain = Chain(list(match.pages), row.ids, list(match.nodes), matched)
        row.computed = matched
        for page in match.pages:
            self.pages.hold(page)
        if not match.tail:
            return True
        self.pages.hold(match.source)
        return self._copy(row.chain, match.source, match.tail)

    def fits(self, row: RunningRequest, spare: int) -> bool:
        """Whether there are pages for all of the row's tokens and one more; those that it needs now are taken."""
        missing = self.pages.needed(row.length + 1) - len(row.chain.pages)
        of_idle = sum(len(chain.pages) for chain in self.kept.values()) if self.pages.available < missing + spare else 0
        return self.pages.available + of_idle >= missing + spare and self.grow(row.chain, row.length)

    def grow(self, chain: Chain, tokens: int) -> bool:
        while len(chain.pages) < self.pages.needed(tokens):
            page = self._take()
            if page is None:
                return False
            chain.pages.append(page)
        return True

    def give_up(self, row: RunningRequest) -> None:
        """The row was not admitted after all, or has to make room: it holds nothing and starts over."""
        for copy in [c for c in self.copies if c[1] in row.chain.pages]:
            self.copies.remove(copy)
            self.pages.drop([copy[0]])
        self.pages.drop(row.chain.pages)
        row.chain, row.computed = Chain(), 0

    def _copy(self, chain: Chain, source: int, tokens: int) -> bool:
        """A private page that begins as `source` does. The caller holds `source`; that hold ends with the launch."""
        page = self._take()
        if page is None:
            self.pages.drop([source])
            return False
        chain.pages.append(page)
        self.pages.copied(source, page, tokens)
        self.copies.append((source, page, tokens))
        return True

    def _take(self) -> int | None:
        """A page; if needed, taken from the least recently used trajectory."""
        page = self.pages.take()
        while page is None and self.kept:
            _, chain = self.kept.popitem(last=False)
            self.pages.drop(chain.pages)
            page = self.pages.take()
        return page
