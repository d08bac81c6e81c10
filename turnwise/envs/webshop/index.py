"""Ranked search over the products: BM25 in single precision, step by step as Lucene computes it.

Equal ranks need equal arithmetic. Lucene keeps a document's length in one byte (exact up to 40, then with four significant bits), takes
the average from the true lengths, computes each term's share in 32-bit floats and sums the shares in 64 bits. A word that occurs twice in
the query counts twice. Equal scores are ordered by product id, as text.

The postings are in flat arrays (term by term: product, frequency), so that memory is linear in the number of postings: 6 bytes each, 5
per product, 8 per term.
"""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.webshop.analysis import terms

K1, B = np.float32(0.9), np.float32(0.4)
MOST_FREQUENT = 65535


def _byte_lengths() -> NDArray[np.float32]:
    """The length that each of the 256 length bytes stands for."""
    free = 24  # lengths below this have a byte each

    def value(code: int) -> int:
        if code < free:
            return code
        mantissa, shift = (code - free) & 7, ((code - free) >> 3) - 1
        return free + (mantissa if shift < 0 else (mantissa | 8) << shift)

    return np.array([value(code) for code in range(256)], dtype=np.float32)


LENGTHS = _byte_lengths()


def length_byte(length: int) -> int:
    """The byte that encodes a length: that of the largest length that is not larger."""
    return int(np.searchsorted(LENGTHS, length, side="right")) - 1


class IndexBuilder:
    """Takes the documents one by one, in the order of their numbers; `build` gives the index."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self._terms, self._documents, self._counts = array("i"), array("i"), array("H")
        self._names: list[str] = []
        self._bytes = array("B")
        self._total = 0

    def add(self, name: str, text: str) -> None:
        found = terms(text)
        number = len(self._names)
        self._names.append(name)
        self._bytes.append(length_byte(len(found)))
        self._total += len(found)
        for term, count in Counter(found).items():
            self._terms.append(self.vocabulary.setdefault(term, len(self.vocabulary)))
            self._documents.append(number)
            self._counts.append(min(count, MOST_FREQUENT))

    def build(self) -> Index:
        term_of = np.frombuffer(self._terms, dtype=np.int32) if self._terms else np.zeros(0, np.int32)
        order = np.argsort(term_of, kind="stable")
        starts = np.zeros(len(self.vocabulary) + 1, dtype=np.int64)
        np.cumsum(np.bincount(term_of, minlength=len(self.vocabulary)), out=starts[1:])
        documents = np.frombuffer(self._documents, dtype=np.int32)[order] if self._terms else np.zeros(0, np.int32)
        counts = np.frombuffer(self._counts, dtype=np.uint16)[order] if self._terms else np.zeros(0, np.uint16)
        lengths = np.frombuffer(self._bytes, dtype=np.uint8).copy() if self._names else np.zeros(0, np.uint8)
        return Index(self.vocabulary, starts, documents, counts, lengths, self._total, self._names)


class Index:
    """The finished index. `search` is a pure function of the query."""

    def __init__(
        self,
        vocabulary: dict[str, int],
        starts: NDArray[np.int64],
        documents: NDArray[np.int32],
        counts: NDArray[np.uint16],
        lengths: NDArray[np.uint8],
        total_length: int,
        names: list[str],
    ):
        self.vocabulary, self.starts, self.documents, self.counts, self.lengths = vocabulary, starts, documents, counts, lengths
        self.size = len(names)
        self._name_rank = np.empty(self.size, dtype=np.int32)
        self._name_rank[sorted(range(self.size), key=names.__getitem__)] = np.arange(self.size, dtype=np.int32)
        average = np.float32(total_length / max(self.size, 1)) if total_length else np.float32(1)
        one = np.float32(1)
        self._inverse = (one / (K1 * ((one - B) + B * LENGTHS / average))).astype(np.float32)

    def search(self, query: str, limit: int = 50) -> list[tuple[int, float]]:
        """The numbers of the best documents with their scores, best first; empty if no word of the query is in any of them."""
        scores = np.zeros(self.size, dtype=np.float64)
        touched = False
        for term, boost in Counter(terms(query)).items():
            if (number := self.vocabulary.get(term)) is not None:
                here = slice(int(self.starts[number]), int(self.starts[number + 1]))
                # what one term adds to each document that has it
                having = here.stop - here.start
                rarity = np.float32(np.log(1 + (self.size - having + 0.5) / (having + 0.5)))
                weight = np.float32(boost) * rarity
                saturation = np.float32(1) + self.counts[here].astype(np.float32) * self._inverse[self.lengths[self.documents[here]]]
                scores[self.documents[here]] += weight - weight / saturation
                touched = True
        return self._best(scores.astype(np.float32), limit) if touched else []

    def _best(self, scores: NDArray[np.float32], limit: int) -> list[tuple[int, float]]:
        found = np.flatnonzero(scores > 0)
        if len(found) > limit:
            bound = np.partition(scores[found], len(found) - limit)[len(found) - limit]
            found = found[scores[found] >= bound]  # including all that tie with the last one: ties are resolved below
        ranked = found[np.lexsort((self._name_rank[found], -scores[found]))][:limit]
        return [(int(number), float(scores[number])) for number in ranked]
