"""Tokenisation for BM25: lower case without accents, whole words, no stemming.

Stop words stay in the index and are dropped only from queries, unless a query contains nothing else: "The Who" can be found, and "who
wrote the" is cheap.
"""

from __future__ import annotations

import re
import unicodedata

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
