"""What a later kernel of a decode step will read, brought into the GPU's cache while a small kernel runs.

A layer's norms and its smaller products last some microseconds in which the memory is nearly idle, and after them come kernels that wait
for it: the MLP's first product for its weights, attention for its pages. So the small kernels ask for the beginning of these. The request
is a hint without an answer: it changes no result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

NOTHING, LINES, PAGES = 0, 1, 2
WEIGHT_BYTES = 16 << 20  # of a weight that is asked for
PAGE_BYTES = 24 << 20  # of all lanes' pages together
WEIGHT_PLACE = "out"  # the kernel that asks for it: the product before the MLP ("out") or the norm between ("norm")
MOST_ROWS = 128  # with more rows the MLP computes longer than it reads
FIRST_PROGRAMS = 264  # lanes whose programs begin at once: the others' pages would be gone again before they are read
THREADS = 128  # at least so many requests per program: fewer would be made by several threads each
MOST_PAGES = 64  # of a lane
PIECES = 8  # requests per page of keys, and as many of values


class Fetch(NamedTuple):
    """`LINES`: `size` bytes at the beginning of each row of `source`. `PAGES`: the first `size` pages of one key head for the first
    `lines` lanes; `source` is a layer's cache."""

    kind: int
    source: Tensor
    lines: int
    size: int
    pages: Tensor | None = None
    slots: Tensor | None = None
    positions: Tensor | None = None

    def arguments(self, programs: int) -> tuple[Any, ...]:
        """A kernel's parameters from `source` to `REQUESTS`."""
        s = self.source
        if self.pages is None:
            each = max(THREADS, _rounded(-(-self.lines // programs)))
            return s, s, s, s, self.lines, s.stride(0), self.size, 0, 0, 0, 1, self.kind, each
        each = max(THREADS, _rounded(2 * PIECES * self.size))
        sizes = s.stride(0), s.stride(1), s.stride(2), s.shape[3]
        return s, self.pages, self.slots, self.positions, self.lines, self.pages.stride(0), self.size, *sizes, self.kind, each


def nothing(x: Tensor) -> tuple[Any, ...]:
    """Arguments of a kernel that asks for nothing."""
    return x, x, x, x, 0, 0, 0, 0, 0, 0, 1, NOTHING, 1


def of_weight(weight: Tensor, most: int) -> Fetch | None:
    """The beginning of every row of a weight, `most` bytes together."""
    row = weight.stride(0) * weight.element_size()
    count = min(row, most // len(weight) // 128 * 128)
    return Fetch(LINES, weight, len(weight), count) if count and row % 16 == 0 else None  # what is asked for begins at 16 bytes


def of_pages(cache: Tensor, tables: Any, slots: Tensor, positions: Tensor, most: int) -> Fetch | None:
    """The first pages of the lanes whose programs begin first, `most` bytes together: those of the first key head."""
    lanes = min(len(slots), FIRST_PROGRAMS)
    count = min(most // (lanes * 2 * cache.stride(2) * cache.element_size()), MOST_PAGES)
    return Fetch(PAGES, cache, lanes, count, tables.pages, slots, positions) if count else None


def _rounded(count: int) -> int:
    """The next power of two."""
    return 1 << max(count - 1, 0).bit_length()
