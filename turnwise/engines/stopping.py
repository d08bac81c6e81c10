"""A request while it runs, and where its response ends: stop tokens, stop strings that may begin and end inside tokens, and rules that
read what is reported.

Text is decoded as it grows, a few tokens at a time. What one token means can depend on its neighbours (a character of several bytes is
often several tokens; many tokenizers drop or add a space at a boundary), so a small window before the new token is decoded with it and
the difference is the new text. A replacement character at the end may be half a character: the window stays until it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from turnwise.engines.base import Finish, Request, Response
from turnwise.util.errors import TurnwiseError

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
    token_ids: set[int] = set()
    for source in sources:
        named = getattr(source, "eos_token_id", None)
        if isinstance(named, int):
            token_ids.add(named)
        elif isinstance(named, Iterable):
            token_ids.update(int(token) for token in named)
    return frozenset(token_ids)


@dataclass(slots=True, eq=False)
class Running:
    """A request that runs. `ids` are the prompt and what was sampled; `end` is the largest allowed number of them. `rule` is asked after
    each token whether the response ends. `version` is that of the weights that drew the first token."""

    request: Request
    ids: list[int]
    end: int
    stop: StopStrings | None = None
    rule: Callable[[int, Mapping[str, float]], bool] | None = None
    logprobs: list[float] = field(default_factory=list)
    reports: dict[str, list[float]] = field(default_factory=dict)
    version: int = -1
    finished: bool = False

    @classmethod
    def of(cls, request: Request, ids: list[int], max_length: int, tokenizer: Any) -> Self:
        sampling = request.sampling
        stop = StopStrings(tokenizer, sampling.stop) if sampling.stop else None
        rule = None if sampling.rule is None else sampling.rule.watch(tokenizer)
        return cls(request, ids, min(len(ids) + sampling.max_tokens, max_length), stop, rule)

    def ended(self, token: int, stop_token_ids: frozenset[int]) -> Finish | None:
        """Whether the response ends with this token, which is the last of `ids`."""
        if token in stop_token_ids or (self.stop is not None and self.stop.push(token)):
            return Finish.STOP
        if len(self.ids) >= self.end:
            return Finish.LENGTH
        return Finish.RULE if self.rule is not None and self.rule(token, self.newest()) else None

    def newest(self) -> dict[str, float]:
        """What was reported about the last token."""
        return {column: values[-1] for column, values in self.reports.items()}

    def sampled(self) -> tuple[int, ...]:
        return tuple(self.ids[len(self.ids) - len(self.logprobs) :])

    def response(self, finish: Finish, message: str = "") -> Response:
        """The response as it is now."""
        reports = {column: tuple(values) for column, values in self.reports.items()}
        return Response(self.request.key, self.sampled(), tuple(self.logprobs), finish, message, reports=reports, version=self.version)


def need_tokenizer(request: Request, tokenizer: Any, engine: str) -> None:
    if request.sampling.stop and tokenizer is None:
        raise TurnwiseError(f"engine: stop strings need a tokenizer: give one to {engine}")


def wrong_length(prompt: Sequence[int], max_length: int, more: str = " or a larger max_length") -> str:
    """Why a prompt of this length cannot be answered; empty if it can. `more`: what to do besides giving a shorter one."""
    if not len(prompt):
        return "the prompt is empty: it needs at least one token"
    if len(prompt) < max_length:
        return ""
    room = f"prompt and response together may have {max_length}"
    return f"the prompt has {len(prompt)} tokens, and {room}: give a shorter prompt{more}"


def wrong_tokens(prompt: Sequence[int], vocabulary: int) -> str:
    """Why a prompt with these tokens cannot be answered; empty if it can."""
    if min(prompt) >= 0 and max(prompt) < vocabulary:
        return ""
    return f"the prompt has token ids from {min(prompt)} to {max(prompt)}, and the model knows 0 to {vocabulary - 1}: another tokenizer?"
