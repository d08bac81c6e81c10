"""Where a response ends: stop tokens, stop strings that may begin and end inside tokens, and rules that read what is reported.

Text is decoded as it grows, a few tokens at a time. What one token means can depend on its neighbours (a character of several bytes is
often several tokens; many tokenizers drop or add a space at a boundary), so a small window before the new token is decoded with it and
the difference is the new text. A replacement character at the end may be half a character: the window stays until it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from turnwise.engines.base import Sampling

HALF_CHARACTER = "\ufffd"
WINDOW_LIMIT = 32  # tokens that never become a character must not make every later step slower


class Decoder(Protocol):
    """The part of a tokenizer that is needed here; tokenizers of transformers have it."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None) -> str: ...


class StopStrings:
    """Watches one response: `push` a token, and learn whether the text now contains one of the strings."""

    def __init__(self, tokenizer: Decoder, strings: Sequence[str]):
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._tail_length = max(map(len, strings)) - 1
        self._ids: list[int] = []
        self._window = 0  # where the decoded window begins
        self._settled = 0  # the tokens before this one are text already
        self._settled_window = ""  # the text of the window's settled part
        self._tail = ""  # the end of the settled text, one character shorter than the longest string

    def push(self, token: int) -> bool:
        self._ids.append(token)
        window = self._decode(self._window)
        new = window[len(self._settled_window) :] if window.startswith(self._settled_window) else self._decode(self._settled)
        text = self._tail + new
        if any(string in text for string in self._strings):
            return True
        if (new and not new.endswith(HALF_CHARACTER)) or len(self._ids) - self._window > WINDOW_LIMIT:
            self._tail = text[-self._tail_length :] if self._tail_length else ""
            self._window, self._settled = self._settled, len(self._ids)
            self._settled_window = self._decode(self._window)
        return False

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], skip_special_tokens=False, clean_up_tokenization_spaces=False)


def stop_tokens(*sources: Any) -> frozenset[int]:
    """The end tokens that a tokenizer, a generation config or a model config names: `eos_token_id`, one or several."""
    found: set[int] = set()
    for source in sources:
        named = getattr(source, "eos_token_id", None)
        if isinstance(named, int):
            found.add(named)
        elif isinstance(named, Iterable):
            found.update(int(token) for token in named)
    return frozenset(found)


def watch(sampling: Sampling, tokenizer: Any) -> Callable[[int, Mapping[str, float]], bool] | None:
    """What the stop rule of a request, if it has one, makes of this one response."""
    return None if sampling.rule is None else sampling.rule.watch(tokenizer)


def newest(reports: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What was reported about the last token."""
    return {column: values[-1] for column, values in reports.items()}
