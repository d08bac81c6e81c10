"""Layers of the Llama and Qwen2 families with a backward pass of their own: what a GPU spends on training besides matrix products, cut.

`FusedStack` is what `PackedModel` uses where it can; everything else here is its inside.
"""

from __future__ import annotations

from turnwise.learn.fused.stack import FusedStack, reason_against

__all__ = ["FusedStack", "reason_against"]
