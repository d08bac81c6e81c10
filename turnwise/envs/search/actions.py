"""The action in a response: a search, an answer, or neither.

Two forms: `search[words]` and `answer[words]`, or `<search>words</search>` and `<answer>words</answer>` anywhere in a whole response,
outside its thought. If a response has several, the first one counts. Any text is read in one pass, and none raises an error.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Verb = Literal["search", "answer"]
SEARCH_FORM, ANSWER_FORM = "search[<query>]", "answer[<answer>]"
BRACKETS = re.compile(r"(search|answer)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)
TAG = re.compile(r"<(search|answer)>", re.IGNORECASE)
THOUGHT, THOUGHT_END = re.compile(r"<think>", re.IGNORECASE), re.compile(r"</think>", re.IGNORECASE)
LONGEST = 1000  # characters of a query or an answer: servers reject more


class Action(NamedTuple):
    """A verb with its words."""

    verb: Verb
    words: str


def read_action(text: str) -> Action | None:
    """The action in a text; None if there is none, or if it is empty."""
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be sent anywhere
    if ended := THOUGHT_END.search(text):
        text = text[ended.end() :]
    elif begun := THOUGHT.search(text):  # an unclosed thought is all thought
        text = text[: begun.start()]
    text = text.strip()
    bracketed = BRACKETS.fullmatch(text)
    verb, words = (bracketed[1], bracketed[2]) if bracketed else _tagged(text)
    words = " ".join(words.split())[:LONGEST]
    if not words:
        return None
    return Action("search" if verb.lower() == "search" else "answer", words)


def _tagged(text: str) -> tuple[str, str]:
    opening = TAG.search(text)
    if opening is None:
        return "", ""
    closing = re.compile(f"</{opening[1]}>", re.IGNORECASE).search(text, opening.end())
    return (opening[1], text[opening.end() : closing.start()]) if closing else ("", "")
