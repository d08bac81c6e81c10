"""Layers of the families that the native engine knows, with a custom backward pass: less GPU time apart from the matrix products.

`PackedModel` uses `FusedStack` if it can; everything else here is internal.
"""

from __future__ import annotations

from turnwise.learn.fused.stack import FusedStack, reason_against

__all__ = ["FusedStack", "reason_against"]
