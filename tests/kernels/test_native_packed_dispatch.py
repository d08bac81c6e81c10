"""Who computes products with weights in 4 bits: the dispatch, with a stand-in for the kernel."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import pytest
import torch
from fourbit_double import fourbit
from native_doubles import paged_runner, random
from native_models import make
from torch import Tensor, nn

from turnwise.engines.fourbit import dense
from turnwise.engines.native.weights import Linear, Weights
from turnwise.kernels.product_table import packed_blocks
from turnwise.learn.lora import pack_base

__all__ = ["fourbit"]  # a fixture


def test_blocks_for_few_rows_divide_the_inner_size_until_a_gpu_is_busy() -> None:
    assert packed_blocks(1, 3584, 3584, 132, 9) is None and packed_blocks(65, 3584, 3584, 132, 9) is None
    assert packed_blocks(8, 3584 + 64, 3584, 132, 9) is None, "no whole parts"
    assert all(packed_blocks(8, 3584, 3584, 132, generation) is None for generation in (7, 10, 11)), "where it does not run"
    wide, narrow = packed_blocks(8, 3584, 3584, 132, 9), packed_blocks(8, 896, 896, 132, 9)
    assert wide is not None and narrow is not None and (wide.part, narrow.part) == (256, 128)
    for generation, (width, size) in product(
        (8, 9, 12), ((3584, 18944), (18944, 3584), (3584, 3584), (3584, 512), (1536, 8960), (896, 128))
    ):
        for rows in (2, 8, 9, 16, 17, 32, 33, 64):
            blocks = packed_blocks(rows, width, size, 132, generation)
            assert blocks is not None and rows <= blocks.rows <= max(8, 2 * rows)
            steps = width // blocks.part
            share = -(-steps // blocks.split)
            assert blocks.split >= 1 and share * (blocks.split - 1) < steps, "every program has a step"
            busy = blocks.split * -(-size // blocks.columns) * blocks.warps
            assert busy >= 8 * 132 or share <= 7, "enough warps, or nothing left to divide"
    assert packed_blocks(8, 3584, 1 << 20, 132, 9)._replace(split=1) == packed_blocks(8, 3584, 1 << 20, 132, 9)  # type: ignore[union-attr]


class OnGPU(torch.Tensor):
    """Rows that say that they are on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def on_gpu(rows: int) -> Tensor:
    return random(rows, 64).as_subclass(OnGPU)


@pytest.mark.usefixtures("fourbit")
@pytest.mark.parametrize("variant", ["llama with biases", "qwen3"])
def test_few_rows_on_a_gpu_go_to_the_kernel_if_there_is_one_and_it_takes_them(variant: str) -> None:
    model = pack_base(make(variant, intermediate_size=128), "cpu", torch.float32)
    linear: Linear = Weights(model).layers[0].qkv
    asked: list[tuple[int, int]] = []

    def kernel(x: Tensor, weights: Any, bias: Tensor | None) -> Tensor | None:
        asked.append((len(x), len(weights)))
        assert bias is linear.bias and (bias is None) == (variant == "qwen3")
        return nn.functional.linear(x, torch.cat([dense(own) for own in weights]), bias) + 1000 if len(x) < 9 else None

    for rows in (2, 8, 9, 512, 513):
        x = on_gpu(rows)
        expected = nn.functional.linear(x, linear.weight, linear.bias)
        torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(linear(x, kernel), expected + 1000 if rows < 9 else expected, rtol=1e-4, atol=1e-4)
    assert asked == [(2, 3), (8, 3), (9, 3), (512, 3)], "more rows are unpacked"
    linear(random(2, 64), kernel)
    assert len(asked) == 4, "nothing that is on a CPU"


@pytest.mark.usefixtures("fourbit")
def test_all_products_of_a_layer_use_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    paged_runner(monkeypatch)
    module = sys.modules["turnwise.engines.native.layer_products"]
    asked: list[int] = []

    def kernel(x: Tensor, weights: Any, bias: Tensor | None) -> None:
        asked.append(len(weights))

    monkeypatch.setattr(module, "packed_product", kernel)
    weights = Weights(pack_base(make("qwen2", intermediate_size=128), "cpu", torch.float32))
    work, layer, x = module.LayerProducts(weights), weights.layers[0], on_gpu(3)
    work.out(layer, work.qkv(layer, x, False)[:, :64], False)
    work.mlp(layer, x, False)
    assert asked == [3, 1, 2, 1]
