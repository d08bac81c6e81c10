"""The matrix products of a layer and the small kernels between them, in the ways that `Switches` name.

The library computes a product unless a switch is on and `product_table` has blocks for its shape. Dense layers with adapters are always
the library's, weights in 4 bits unless the switch `packed` is on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.engines.native import hopper_tiles
from turnwise.engines.native.gate_tiles import gate_tiles
from turnwise.engines.native.hopper_tiles import Tile
from turnwise.engines.native.kernels import add_norm, gate_mul
from turnwise.engines.native.packed_product import packed_product
from turnwise.engines.native.product_table import Blocks, blocks_of, tile_of
from turnwise.engines.native.products import fits, gated, product
from turnwise.engines.native.switches import PLAIN, Switches
from turnwise.engines.native.weights import Layer, Linear, Weights


class LayerProducts:
    """Computes with a model's layers. What has been added up in parts stays in parts until the next norm reads it."""

    def __init__(self, weights: Weights, switches: Switches = PLAIN):
        self._eps, self._kind = weights.shape.eps, weights.shape.activation
        hopper = since_hopper(weights.device)
        self._own, self._gate = (on and (hopper or weights.device.type != "cuda") for on in (switches.products, switches.gate))
        self._hopper = hopper and hopper_tiles.available(weights.device)
        self._tiles = switches.gate_tiles and self._hopper
        self._packed = packed_product if switches.packed else None
        self.overlap = switches.overlap and hopper

    def norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """x += delta, in place; the norm of x."""
        return add_norm(x, delta, weight, self._eps, self.overlap)

    def qkv(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """Queries, keys and values: [rows, size], or in parts [split, rows, size] if the caller takes them."""
        return self._summed("qkv", layer.qkv, x, parts)

    def splits_qkv(self, layer: Layer, rows: int) -> bool:
        """Whether `qkv` gives so many rows in parts to a caller who takes them."""
        blocks = self._planned("qkv", layer.qkv, rows)
        return blocks is not None and blocks.split > 1

    def out(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """What attention adds to the residual: [rows, size], or in parts [split, rows, size] if the caller takes them."""
        return self._summed("out", layer.out, x, parts and layer.after_attention is None)

    def mlp(self, layer: Layer, x: Tensor, parts: bool) -> Tensor:
        """What the MLP adds to the residual, as `out`."""
        if layer.experts is not None:
            return layer.experts(x, lambda both: gate_mul(both, self._kind))
        return self._summed("down", layer.down, self._activated(layer.gate_up, x), parts and layer.after_mlp is None)

    def takes_head(self, x: Tensor, weights: Weights) -> bool:
        """Whether the output layer's product can be `head_tiles`: without anything that follows it."""
        plain = weights.head_bias is None and weights.shape.softcap is None
        return self._hopper and plain and hopper_tiles.fits(x, weights.head)

    def _activated(self, linear: Linear, x: Tensor) -> Tensor:
        tile = self._tile(linear, x)
        if tile is not None:
            return gate_tiles(x, linear.weight, self._kind, tile, self.overlap)
        blocks = self._blocks("gate", linear, x)
        if blocks is None:
            return gate_mul(linear(x, self._packed), self._kind, self.overlap)
        return gated(x, linear.weight, linear.bias, self._kind, blocks, self.overlap)

    def _summed(self, kind: str, linear: Linear, x: Tensor, parts: bool) -> Tensor:
        blocks = self._blocks(kind, linear, x)
        if blocks is None or (blocks.split > 1 and not parts):
            return linear(x, self._packed)
        return product(x, linear.weight, linear.bias, blocks, self.overlap)

    def _tile(self, linear: Linear, x: Tensor) -> Tile | None:
        if not self._tiles or not linear.plain or linear.bias is not None:
            return None
        tile = tile_of(len(x), x.shape[1], sum(linear.sizes))
        return tile if tile is not None and hopper_tiles.fits(x, linear.weight) else None

    def _blocks(self, kind: str, linear: Linear, x: Tensor) -> Blocks | None:
        blocks = self._planned(kind, linear, len(x))
        return blocks if blocks is not None and fits(x, linear.weight, blocks) else None

    def _planned(self, kind: str, linear: Linear, rows: int) -> Blocks | None:
        if not (self._gate if kind == "gate" else self._own) or not linear.plain:
            return None
        return blocks_of(kind, rows, linear.weight.shape[1], sum(linear.sizes))


def since_hopper(device: torch.device) -> bool:
    """Whether this is a GPU with a copy engine, on which kernels can overlap and for whose memory blocks were chosen."""
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= (9, 0))
