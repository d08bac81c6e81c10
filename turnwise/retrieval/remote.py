"""A retriever on a running server, with the protocol that is common in this field:

    POST /retrieve  {"queries": ["…"], "topk": 3, "return_scores": true}
    answer          {"result": [[{"document": {"id": "7", "contents": "\"Title\"\\ntext"}, "score": 12.3}, …], …]}

Servers differ in details, and all of these are accepted: hits without scores (the bare document), documents with `title` and `text`
instead of `contents`, documents without an id. Transient failures (a timeout, a busy or restarting server) are retried; other failures are
errors that name the server. A failure is never replaced by an empty answer, because an agent must not be trained on server failures.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.retrieval.base import Hit, Passage, passage_of_contents
from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact
from turnwise.util.transport import Failure, Transport

PATH = "retrieve"
LONGEST_WAIT = 30.0
QUERIES_A_REQUEST = 256


class Remote:
    """A client of a retrieval server. `timeout`: seconds per request. `retries`: retries after a transient failure; `first_wait`: seconds
    before the first retry, doubled each time. `key_variable` names the environment variable whose value is sent as a bearer token; the key
    itself is not an option, because options are stored with a run."""

    def __init__(self, url: str, timeout: float = 60.0, retries: int = 10, first_wait: float = 0.5, key_variable: str = ""):
        if timeout <= 0 or retries < 0 or first_wait < 0:
            raise TurnwiseError(
                f"retrieval server {redact(url)!r}: timeout must be above 0, retries and first_wait must not be negative; "
                f"got timeout={timeout}, retries={retries}, first_wait={first_wait}"
            )
        key = os.environ.get(key_variable, "").strip() if key_variable else ""
        if key_variable and not key:
            raise TurnwiseError(
                f"retrieval server {redact(url)!r}: its key is read from {key_variable}, which is not set in the environment"
            )
        self.url = url.rstrip("/").removesuffix(f"/{PATH}")
        self.retries, self.first_wait = retries, first_wait
        self._transport = Transport(self.url, key, timeout)
        self._chance = random.Random(0)  # jitter, so that many clients do not retry at once; nothing else depends on it
        self._sleep: Callable[[float], None] = time.sleep

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        found: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_A_REQUEST):
            found += self._ask(list(queries[start : start + QUERIES_A_REQUEST]), topk)
        return found

    def _ask(self, queries: list[str], topk: int) -> list[list[Hit]]:
        body = {"queries": queries, "topk": topk, "return_scores": True}
        for attempt in range(self.retries + 1):
            try:
                return read_answer(self._transport.post(PATH, body), len(queries), topk)
            except Failure as failure:
                if not failure.passing or attempt == self.retries:
                    tried = f" (tried {attempt + 1} times)" if attempt else ""
                    advice = "Is it running, and is the address right? docs/environments/search-qa.md says how to start one"
                    raise TurnwiseError(f"retrieval server {redact(self.url)}/{PATH}: {failure}{tried}. {advice}") from None
                self._sleep(self._wait(attempt, failure))
        raise AssertionError("unreachable: the last try returns or raises")

    def _wait(self, attempt: int, failure: Failure) -> float:
        asked = failure.retry_after
        wait = self.first_wait * 2.0**attempt * self._chance.uniform(0.5, 1.0) if asked is None else asked
        return min(wait, LONGEST_WAIT)

    def close(self) -> None:
        self._transport.close()


def read_answer(answer: Mapping[str, Any], count: int, topk: int) -> list[list[Hit]]:
    """The hits of a server's answer; a permanent `Failure` if it has another form."""
    result = answer.get("result")
    if not isinstance(result, list) or len(result) != count or not all(isinstance(row, list) for row in result):
        raise Failure(f'an answer whose "result" is not a list of {count} lists, one per query')
    return [[_hit(entry, rank) for rank, entry in enumerate(row[:topk])] for row in result]


def _hit(entry: Any, rank: int) -> Hit:
    document, score = entry, 0.0
    if isinstance(entry, dict) and "document" in entry:
        document, score = entry["document"], entry.get("score", 0.0)
    if isinstance(document, str):
        document = {"contents": document}
    if not isinstance(document, dict) or not isinstance(score, int | float):
        raise Failure('a hit that is neither a document nor {"document": …, "score": …}')
    name = str(document.get("id", ""))
    if isinstance(contents := document.get("contents"), str):
        passage = passage_of_contents(name, contents)
    elif isinstance(text := document.get("text"), str):
        passage = Passage(name, str(document.get("title", "")), text)
    else:
        raise Failure('a document with neither "contents" nor "text"')
    return Hit(passage if name else Passage(f"#{passage.title}", passage.title, passage.text), float(score))
