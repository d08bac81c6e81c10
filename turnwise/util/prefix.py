"""The common prefix of two lists of tokens, used by engines, packing and token files for every prompt of a growing dialogue.

It uses plain lists, because prompts are lists, and converting one to an array takes several times as long as comparing it. The integers
in two prompts of one dialogue are the same objects, which Python compares by identity.
"""

from __future__ import annotations


def common_length(first: list[int], second: list[int]) -> int:
    """The length of the common prefix of two lists. Whole slices are compared, which is fast if they are equal."""
    low, high = 0, min(len(first), len(second))
    if (first if len(first) == high else first[:high]) == (second if len(second) == high else second[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def extend_to(grown: list[int], longer: list[int]) -> bool:
    """Make `grown` equal to `longer`, if it is a prefix of that; otherwise leave it as it is and return False. It is extended first and
    compared as a whole: a slice would count a reference to each of its integers, which takes ten times as long as comparing them."""
    before = len(grown)
    grown += longer[before:]
    if grown == longer:
        return True
    del grown[before:]
    return False
