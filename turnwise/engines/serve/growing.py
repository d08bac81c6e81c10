"""The text of a response while it is sampled.

The recorded message must begin with what a stream has sent, or the conversation could not be continued. So text is held back while it
could still become something else: half a character, the beginning of a stop string or of a tool call, spaces at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from turnwise.agent.chat import Chat
from turnwise.agent.tool_calls import OPENING
from turnwise.engines.serve.asked import Asked
from turnwise.engines.stopping import HALF_CHARACTER

BARE = ("{", "[", "`")  # an answer that begins like this may be a call without tags
THOUGHT_END = re.compile("</think>", re.IGNORECASE | re.ASCII)
WINDOW, KEPT = 32, 4  # tokens that are decoded together, and those that stay when the window moves
LONGEST = 512  # tokens that may be half a character


@dataclass(eq=False)
class Growing:
    """The text of one choice while it is sampled. `push` a token and get what may be sent; `rest` gives what is left at the end. `text` is
    what it begins with, if it was begun for the model."""

    chat: Chat
    asked: Asked
    text: str = ""
    sent: int = 0
    _ids: list[int] = field(default_factory=list)
    _start: int = 0  # where the decoded window begins
    _known: str = ""  # the text of the window that is in `text` already
    _answer: int = 0  # where the text after a closed thought begins

    def __post_init__(self) -> None:
        self._calls = bool(self.asked.names)

    def push(self, token: int) -> str:
        if token in self.chat.stop_ids:
            return ""
        self._ids.append(token)
        if len(self._ids) - self._start > LONGEST:  # no whole character for very long: the rest comes at the end
            return ""
        window = self._decode(self._start)
        if window.endswith(HALF_CHARACTER) or not window.startswith(self._known):
            return ""
        self.text += window[len(self._known) :]
        self._known = window
        if len(self._ids) - self._start >= WINDOW:
            self._start = len(self._ids) - KEPT
            self._known = self._decode(self._start)
        end = self._safe()
        found = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return found

    def rest(self, content: str) -> str:
        """What was not sent yet of the recorded content."""
        return content[self.sent :]

    def _safe(self) -> int:
        """The length of the text that can no longer change."""
        text, end = self.text, len(self.text)
        watched = list(self.asked.stop)
        if self._calls:
            watched.append(OPENING)
            if not self._answer and (closed := THOUGHT_END.search(text, max(0, self.sent - 8))):
                self._answer = closed.end()
            if text[self._answer : self._answer + 200].lstrip()[:1] in ("", *BARE):
                end = self._answer
        for one in watched:
            place = text.find(one, max(0, self.sent - len(one)))
            end = min(end, place if place >= 0 else len(text) - _overlap(text, one))
        return len(text[:end].rstrip()) if watched else end

    def _decode(self, start: int) -> str:
        return str(self.chat.tokenizer.decode(self._ids[start:], skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _overlap(text: str, word: str) -> int:
    """How many characters at the end of a text begin a word."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if word.startswith(text[len(text) - size :]):
            return size
    return 0
