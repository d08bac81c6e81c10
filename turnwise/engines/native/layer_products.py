"""The matrix products of a layer and the small kernels between them: which kernel computes what.

The library computes a product, unless `product_table` has blocks for its shape on this GPU or its weights are in 4 bits. Dense layers with
adapters are always the library's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.engines.native.weights import Layer, Linear, Weights
from turnwise.kernels.hopper import tiles
from turnwise.kernels.hopper.tiles import Tile, gate_tiles
from turnwise.kernels.layer import add_norm, gate_mul
from turnwise.kernels.product import fits, product
from turnwise.kernels.product_4bit import packed_product
from turnwise.kernels.product_table import Blocks, blocks_of, tile_of


class LayerProducts:
    """Computes with a model's layers. What has been added up in parts stays in parts until the next norm reads it."""

    def __init__(self, weights: Weights):
        self._eps, self._kind = weights.shape.eps, weights.shape.activation
        self.overlap = since_hopper(weights.device)  # a product or norm may begin before the last kernel has ended
        self._own = self.overlap or weights.device.type != "cuda"
        self._hopper = self.overlap and tiles.available(weights.device)

    def norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """x += delta, in place; the norm of x."""
        return add_norm(x, delta, weight, self._eps, self.overlap)

    def qkv(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """Queries, keys and values: [rows, size], or in parts [split, rows, size] if the caller takes them."""
        return self._summed("qkv", layer.qkv, x, parts)

    def out(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """What attention adds to the residual: [rows, size], or in parts [split, rows, size] if the caller takes them."""
        return self._summed("out", layer.out, x, parts and layer.after_attention is None)

    def mlp(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """What the MLP adds to the residual, as `out`."""
        if layer.experts is not None:
            return layer.experts(x, lambda both: gate_mul(both, self._kind))
        return self._summed("down", layer.down, self._activated(layer.gate_up, x), parts and layer.after_mlp is None)

    def takes_head(self, x: Tensor, weights: Weights) -> bool:
        """Whether the output layer's product can be that of `hopper/sample.py`: without anything that follows it."""
        plain = weights.head_bias is None and weights.shape.softcap is None
        return self._hopper and plain and tiles.fits(x, weights.head)

    def _activated(self, linear: Linear, x: Tensor) -> Tensor:
        tile = self._tile(linear, x)
        if tile is not None:
            return gate_tiles(x, linear.weight, self._kind, tile, self.overlap)
        return gate_mul(linear(x, packed_product), self._kind, self.overlap)

    def _summed(self, kind: str, linear: Linear, x: Tensor, parts: bool) -> Tensor:
        blocks = self._blocks(kind, linear, x)
        if blocks is None or (blocks.split > 1 and not parts):
            return linear(x, packed_product)
        return product(x, linear.weight, linear.bias, blocks, self.overlap)

    def _tile(self, linear: Linear, x: Tensor) -> Tile | None:
        if not self._hopper or not linear.plain or linear.bias is not None:
            return None
        tile = tile_of(len(x), x.shape[1], sum(linear.sizes))
        return tile if tile is not None and tiles.fits(x, linear.weight) else None

    def _blocks(self, kind: str, linear: Linear, x: Tensor) -> Blocks | None:
        if not self._own or not linear.plain:
            return None
        blocks = blocks_of(kind, len(x), linear.weight.shape[1], sum(linear.sizes))
        return blocks if blocks is not None and fits(x, linear.weight, blocks) else None


def since_hopper(device: torch.device) -> bool:
    """Whether this is a GPU with TMA, on which kernels can overlap and for whose memory blocks were chosen."""
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= (9, 0))
