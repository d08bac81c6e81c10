"""The action in a response: a search, an answer, or neither; and whether an answer is right.

Actions have two forms: `search[words]` and `answer[words]`, or `<search>words</search>` and `<answer>words</answer>` anywhere in a whole
response, outside its thought. If a response has several, the first one counts. Any text is read in one pass, and none raises an error.

An answer is right by exact match, and F1 says how nearly, after SQuAD's normalisation: lower case, no punctuation, no articles, single
spaces. One edge case is handled differently. Some questions have an accepted answer that is empty after normalisation ("!!!", "The The");
by the plain rule any answer of articles and punctuation would match it. If nothing is left of an answer, it must equal an accepted one
except for case.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """The text in SQuAD's normal form."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Iterable[str]) -> bool:
    """Whether an answer equals one of the accepted ones."""
    plain = normalise(answer)
    if not plain:
        return bool(answer.strip()) and answer.strip().lower() in {other.strip().lower() for other in accepted}
    return any(plain == normalise(other) for other in accepted)


def f1(answer: str, accepted: Iterable[str]) -> float:
    """The best harmonic mean of precision and recall of words over the accepted answers."""
    return max((_f1(answer, other) for other in accepted), default=0.0)


def _f1(answer: str, other: str) -> float:
    given, wanted = normalise(answer).split(), normalise(other).split()
    if not given or not wanted:
        return float(exact_match(answer, [other]))
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted))


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
