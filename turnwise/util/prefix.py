"""How much two lists of tokens have in common: what engines, packing and the files of tokens ask about every prompt of a growing dialogue.

Plain lists, because prompts are lists: to make an array of one takes several times as long as to compare it. The numbers in two prompts of
one dialogue are the same objects, which Python compares without looking into them.
"""

from __future__ import annotations


def common_length(first: list[int], second: list[int]) -> int:
    """How many tokens two lists have in common at their beginnings. Slices are compared as a whole: that is quick where they are equal."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
