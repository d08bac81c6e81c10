"""The interface of a retriever: passages, hits, and the one method that every retriever has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text with the title of its source. `id` is its name in the corpus."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text in the form that retrieval servers of this field exchange: the title in quotes on a separate line."""
        return f'"{self.title}"\n{self.text}'


class Hit(NamedTuple):
    """A passage that was found. Scores are comparable within one answer only."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds passages. The answer has one list per query, best first, at most `topk` long; equal scores are in corpus order."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]: ...

    def close(self) -> None: ...


def passage_of_contents(name: str, contents: str) -> Passage:
    """The inverse of `Passage.contents`; a title without quotes is kept unchanged."""
    title, _, text = contents.partition("\n")
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Passage(name, title, text)
