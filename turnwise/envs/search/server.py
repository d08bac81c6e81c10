"""A small retrieval server with the protocol that is usual in this field, for many environments or machines that share one index.

    python -m turnwise.envs.search.server --port 8000                          # BM25 over the usual corpus
    python -m turnwise.envs.search.server --retriever '{"name": "dense", "model": "path/to/encoder"}'

    POST /retrieve   {"queries": ["…"], "topk": 3, "return_scores": true}  →  {"result": [[{"document": {"id", "contents"}, "score"}, …]]}
    GET  /health     {"status": "ok"}

It listens on the loopback address by default and has no authentication: expose it to trusted networks only. The size of a request, its
number of queries and its time, from the first byte to the last, are limited; an error is reported in the answer and does not affect other
requests. If all connections are in use, the client that has been sending or reading for longest is dropped: slow clients block no others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.envs.search.questions import find_corpus, find_data
from turnwise.retrieval.kinds import make_retriever
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.terminal import say


def _kind(given: str) -> Any:
    try:
        return json.loads(given) if given.lstrip().startswith("{") else given
    except ValueError as error:
        raise TurnwiseError(f'--retriever {given}: not JSON ({error}). Write a name, or a table like {{"name": "dense", …}}') from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m turnwise.envs.search.server", description="A retrieval server: POST /retrieve.")
    parser.add_argument("--corpus", help="the file of passages; default: the one in --data")
    parser.add_argument("--data", help="the folder with the question sets and the corpus; default: the usual places")
    parser.add_argument("--retriever", default="bm25", help='bm25, or JSON with a name and options, e.g. {"name": "dense", "model": "…"}')
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; default: this machine only")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--topk", type=int, default=3, help="passages for requests that do not say how many")
    parser.add_argument("--cache", type=int, default=100_000, help="answers to remember")
    given = parser.parse_args(arguments)
    try:
        try:
            from turnwise.envs.search.web import Server
        except ModuleNotFoundError:
            raise MissingExtra("the retrieval server", "serve") from None
        kind = _kind(given.retriever)
        corpus = Path(given.corpus) if given.corpus else find_corpus(Path(given.data).expanduser() if given.data else find_data())
        server = Server(make_retriever(kind, corpus, given.cache), given.host, given.port, given.topk)
    except TurnwiseError as error:
        say(f"error: {error}", err=True)
        return 2
    say(f"serving {corpus} at http://{given.host}:{server.port}/retrieve")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
