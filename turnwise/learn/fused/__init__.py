"""Layers of the Llama and Qwen2 families with a custom backward pass: less GPU time for training apart from the matrix products.

`PackedModel` uses `FusedStack` if it can; everything else here is internal.
"""

from __future__ import annotations

from turnwise.learn.fused.stack import FusedStack, reason_against

__all__ = ["FusedStack", "reason_against"]
