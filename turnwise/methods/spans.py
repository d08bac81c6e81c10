"""Where a text stands among token ids: the observation in a prompt, the action in a response.

Tokens are compared by what they say, not by how a text would be tokenised alone, because a tokenizer may join the end of a text with what
follows it. Spaces and letters outside ASCII are passed over: some tokenizers lose the first when they decode a single token, and split the
second into several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

NEAR = 512  # tokens that may follow a text at the end of a prompt
SPECIAL = "\0"  # a control token says nothing that a text could say


class Spans:
    """Finds texts in token ids of one tokenizer. What a token says is looked up once."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._said = {int(number): SPECIAL for number in getattr(tokenizer, "all_special_ids", ())}

    def find(self, ids: Sequence[int], text: str) -> range | None:
        """The tokens that say the last occurrence of a text; None if there is none, or the text has no letters."""
        wanted = plain(text)
        near = max(len(ids) - len(wanted) - NEAR, 0)  # what was seen last stands near the end of a prompt, however long that is
        return (self._from(near, ids, wanted) or self._from(0, ids, wanted)) if wanted else None

    def _from(self, begin: int, ids: Sequence[int], wanted: str) -> range | None:
        said = [self._word(int(number)) for number in ids[begin:]]
        start = "".join(said).rfind(wanted)
        if start < 0:
            return None
        ends = np.cumsum([len(word) for word in said])
        first, last = np.searchsorted(ends, (start + 1, start + len(wanted)))
        return range(begin + int(first), begin + int(last) + 1)

    def between(self, ids: Sequence[int], tags: Sequence[str]) -> dict[str, tuple[range, str]]:
        """By tag, the tokens between its first <tag> and the next </tag>, and what they say; tags without a closed pair are left out."""
        said = [self._word(int(number)) for number in ids]
        text, ends = "".join(said), np.cumsum([len(word) for word in said])
        result: dict[str, tuple[range, str]] = {}
        for tag in tags:
            _, opening, after = text.partition(f"<{tag}>")
            inside, closing, _ = after.partition(f"</{tag}>")
            if not opening or not closing:
                continue
            start = len(text) - len(after)
            first, last = np.searchsorted(ends, (start + 1, start + max(len(inside), 1)))
            result[tag] = (range(int(first), int(last) + 1 if inside else int(first)), inside)
        return result

    def encode(self, text: str) -> list[int]:
        """The token ids of a text inside a prompt."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _word(self, number: int) -> str:
        if number not in self._said:
            self._said[number] = plain(self.tokenizer.decode([number]))
        return self._said[number]


def plain(text: str) -> str:
    """The text without spaces and without letters outside ASCII."""
    return "".join(text.encode("ascii", "ignore").decode().split())
