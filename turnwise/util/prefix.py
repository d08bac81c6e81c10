"""The common prefix of two lists of tokens, used by engines, packing and token files for every prompt of a growing dialogue.

It uses plain lists, because prompts are lists, and converting one to an array takes several times as long as comparing it. The integers
in two prompts of one dialogue are the same objects, which Python compares by identity.
"""

from __future__ import annotations


def common_length(first: list[int], second: list[int]) -> int:
    """The length of the common prefix of two lists. Whole slices are compared, which is fast if they are equal."""
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
