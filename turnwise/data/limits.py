"""Limits of the data, for code that needs no arrays."""

from __future__ import annotations

LARGEST_REWARD = 1e150  # squares of their sums still fit into a 64-bit float
