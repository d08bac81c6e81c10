"""In-process BM25 with bm25s: the index is built once, stored on disk, and memory-mapped by every process that uses it.

Scores are Lucene's form of BM25 (titles are part of the text). Ranking is our own: by score, then by position in the corpus, so that equal
scores never depend on a library's sorting; a passage that shares no word with the query is not a hit.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.retrieval.base import Hit
from turnwise.retrieval.cache import build_once, cache_folder, key_of
from turnwise.retrieval.corpus import Corpus
from turnwise.util.errors import MissingExtra, TurnwiseError

FORM = "1"  # of the index on disk: changes with `words_of`


class Bm25:
    """Finds passages by their words. `k1` and `b` are BM25's parameters: how quickly repeated words saturate, and how much length
    matters."""

    def __init__(self, corpus: Corpus, k1: float = 0.9, b: float = 0.4):
        if not (0 <= k1 < 1e6 and 0 <= b <= 1):
            raise TurnwiseError(f"bm25: k1 must be 0 or more and b between 0 and 1, not k1={k1}, b={b}")
        self.corpus = corpus
        self._bm25s, self._k1, self._b = _library(), k1, b
        key = key_of(corpus.key, FORM, self._bm25s.__version__, f"{k1:.9g}", f"{b:.9g}")
        folder = build_once(cache_folder() / "bm25" / key, self._build)
        self._index: Any = self._bm25s.BM25.load(str(folder), mmap=True, load_corpus=False, show_progress=False)
        self._index.backend = "numpy"  # the same summation, regardless of what else is installed
        for name in ("data", "indices", "indptr"):  # still mapped, without the cost of the memmap class at every slice
            self._index.scores[name] = np.asarray(self._index.scores[name])

    def _build(self, folder: Path) -> None:
        vocabulary: dict[str, int] = {}
        rows = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(f"{passage.title} {passage.text}")]
            for passage in self.corpus
        ]
        index = self._bm25s.BM25(method="lucene", k1=self._k1, b=self._b, backend="numpy")
        index.index((rows, vocabulary), show_progress=False, create_empty_token=False)
        index.save(str(folder), show_progress=False)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Hit]:
        known = self._index.get_tokens_ids(query_words(query))
        if not known or topk < 1:
            return []
        scores = self._index.get_scores_from_ids(known)
        touched = np.flatnonzero(scores > 0)  # most passages share no word with a query
        places = touched[best(scores[touched], topk)]
        return [Hit(self.corpus[place], float(scores[place])) for place in places.tolist()]

    def close(self) -> None:
        """The index is shared with other environments: nothing to do."""


def _library() -> Any:
    """bm25s without JAX, which it would try on the GPU as it is imported, and which then keeps three quarters of the GPU's memory."""
    hidden = sys.modules.setdefault("jax", None) is None  # type: ignore[arg-type]  # `import jax` fails
    try:
        return import_module("bm25s")
    except ImportError:
        raise MissingExtra("the bm25 retriever", "search") from None
    finally:
        if hidden:
            del sys.modules["jax"]


def best(scores: np.ndarray[Any, Any], topk: int) -> list[int]:
    """The positions of the highest scores, best first; equal scores in the order of their positions."""
    if topk < len(scores):
        least = np.partition(scores, len(scores) - topk)[len(scores) - topk]
        above = np.flatnonzero(scores > least)
        places = np.concatenate([above, np.flatnonzero(scores == least)[: topk - len(above)]])
    else:
        places = np.arange(len(scores))
    ranked: list[int] = places[np.lexsort((places, -scores[places]))].tolist()
    return ranked


WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be but by did do does for from had has have he her his how i in into is it its of on or s she that the "
        "their they this to was were what when where which who whom whose why will with"
    )
)


def words_of(text: str) -> list[str]:
    """All words of a text, in its order."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return WORD.findall(text.casefold())


def query_words(text: str) -> list[str]:
    """The words of a query without stop words."""
    words = words_of(text)
    return [word for word in words if word not in STOP_WORDS] or words
