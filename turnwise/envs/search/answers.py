"""Whether an answer is right: exact match and F1 after SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

One edge case is handled differently. Some questions have an accepted answer that is empty after normalisation ("!!!", "The The"); by the
plain rule any answer of articles and punctuation would match it. If nothing is left of an answer, it must equal an accepted one except
for case.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

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
