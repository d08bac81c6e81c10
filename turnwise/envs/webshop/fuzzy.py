"""The similarity of two phrases, from 0 to 100, whatever the order of their words: the token set ratio of fuzzy matching libraries.

The reference scores attributes and options with it, so its details matter: punctuation becomes spaces, what is not ASCII is dropped, each
word counts once, and a phrase whose words all occur in the other one is a full match. It is implemented here because a reward must not
depend on an optional package.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SIGNS = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=1 << 16)
def token_set_ratio(one: str, two: str) -> int:
    """An integer from 0 to 100; 0 if either has no word."""
    ours, theirs = _words(one), _words(two)
    if not ours or not theirs:
        return 0
    shared, left, right = ours & theirs, ours - theirs, theirs - ours
    if shared and not (left and right):
        return 100
    mine, yours = " ".join(sorted(left)), " ".join(sorted(right))
    common = len(" ".join(shared))
    gap = 1 if shared else 0  # the space between the shared words and the others
    whole = 2 * (common + gap) + len(mine) + len(yours)
    ratios = [1 - (len(mine) + len(yours) - 2 * _longest_common(mine, yours)) / whole]
    if shared:
        ratios += [1 - (gap + len(rest)) / (2 * common + gap + len(rest)) for rest in (mine, yours)]
    return round(100 * max(ratios))


def _words(phrase: str) -> frozenset[str]:
    plain = phrase.encode("ascii", "ignore").decode().lower()
    return frozenset(_SIGNS.sub(" ", plain).split())


def _longest_common(one: str, two: str) -> int:
    """The length of the longest common subsequence, a row of the table held in the bits of one integer."""
    places: dict[str, int] = {}
    for place, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << place
    full = (1 << len(one)) - 1
    row = full
    for letter in two:
        matches = row & places.get(letter, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()
