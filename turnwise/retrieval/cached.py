"""A bounded cache of answers: the attempts of a group often send the same queries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from turnwise.retrieval.base import Hit, Retriever
from turnwise.util.errors import TurnwiseError


class Cached:
    """A retriever that caches the last `size` answers. It is thread-safe if the wrapped retriever is."""

    def __init__(self, retriever: Retriever, size: int = 10_000):
        if size < 0:
            raise TurnwiseError(f"the number of cached answers must not be negative, got {size}")
        self.retriever, self.size = retriever, size
        self.hits, self.misses = 0, 0
        self._known: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._lock = Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        found: dict[str, list[Hit]] = {}
        with self._lock:
            for query in dict.fromkeys(queries):
                if (query, topk) in self._known:
                    self._known.move_to_end((query, topk))
                    found[query] = self._known[query, topk]
        missing = [query for query in dict.fromkeys(queries) if query not in found]
        if missing:
            found |= zip(missing, self.retriever.search(missing, topk), strict=True)
        with self._lock:
            self.hits += len(queries) - len(missing)
            self.misses += len(missing)
            for query in missing:
                self._known[query, topk] = found[query]
            while len(self._known) > self.size:
                self._known.popitem(last=False)
        return [list(found[query]) for query in queries]

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        self.retriever.close()
