"""Retrievers by name: `"bm25"`, `"dense"`, `"http"`, the address of a server, or a table with a name and that retriever's options.

A retriever is created once per process for the same corpus and options, and shared: a thousand environments use one index and one cache
of answers.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from turnwise.retrieval.base import Hit, Retriever
from turnwise.retrieval.corpus import Corpus
from turnwise.util.errors import TurnwiseError, unknown_name

KINDS = {
    "bm25": ("turnwise.retrieval.bm25", "Bm25"),
    "dense": ("turnwise.retrieval.dense", "Dense"),
    "http": ("turnwise.retrieval.remote", "Remote"),
}
_made: dict[str, Cached] = {}
_corpora: dict[Path, Corpus] = {}


def make_retriever(kind: str | Mapping[str, Any], corpus: str | Path | None = None, cache: int = 10_000) -> Cached:
    """A retriever that caches its last `cache` answers. `corpus` is the file of passages, which a server does not need."""
    name, options = _read(kind)
    identity = json.dumps([name, options, str(corpus and Path(corpus).resolve()), cache], sort_keys=True, default=str)
    if identity not in _made:
        module, member = KINDS[name]
        made_by = getattr(import_module(module), member)
        _check(name, made_by, options)
        if name == "http":
            retriever = made_by(**options)
        elif corpus is None:
            raise TurnwiseError(f"the {name} retriever needs a corpus: a file of passages. See docs/environments/search-qa.md")
        else:
            retriever = made_by(open_corpus(corpus), **options)
        _made[identity] = Cached(retriever, cache)
    return _made[identity]


def check_kind(kind: str | Mapping[str, Any]) -> None:
    """Raise an error for an unknown retriever without creating one, so that a misspelt recipe fails before anything is played."""
    _read(kind)


def open_corpus(path: str | Path) -> Corpus:
    """The corpus in a file, opened once per process."""
    place = Path(path).expanduser().resolve()
    if place not in _corpora:
        _corpora[place] = Corpus(place)
    return _corpora[place]


def _read(kind: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(kind, str):
        options: dict[str, Any] = {"name": "http", "url": kind} if kind.startswith(("http://", "https://")) else {"name": kind}
    elif isinstance(kind, Mapping):
        options = dict(kind)
    else:
        raise TurnwiseError(f"a retriever must be a name or a table with a name and options, not {type(kind).__name__}")
    name = options.pop("name", None)
    if name not in KINDS:
        raise unknown_name("retriever", str(name), KINDS)
    if name == "dense" and options.pop("index", "numpy") != "numpy":
        raise TurnwiseError("dense retriever: index is gone: passages are compared exactly. For a FAISS index, name a server that has it")
    return name, options


def _check(name: str, made_by: Any, options: Mapping[str, Any]) -> None:
    known = {key: p for key, p in inspect.signature(made_by).parameters.items() if key != "corpus"}
    if name == "http" and "key" in options:
        raise TurnwiseError(
            "the http retriever takes no key, because options are stored and shown with a run. Put it in an environment variable and name "
            'the variable: retriever = { name = "http", url = "…", key_variable = "RETRIEVER_KEY" }'
        )
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the {name} retriever:", option, known)
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise TurnwiseError(f'the {name} retriever needs the option {key!r}: retriever = {{ name = "{name}", {key} = … }}')


class Cached:
    """A retriever that caches the last `size` answers. It is thread-safe if the wrapped retriever is."""

    def __init__(self, retriever: Retriever, size: int = 10_000):
        if size < 0:
            raise TurnwiseError(f"the number of cached answers must not be negative, got {size}")
        self.retriever, self.size = retriever, size
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
            for query in missing:
                self._known[query, topk] = found[query]
            while len(self._known) > self.size:
                self._known.popitem(last=False)
        return [list(found[query]) for query in queries]

    def close(self) -> None:
        self.retriever.close()
