"""Gated products on Hopper GPUs: the source and its tiles on any machine, the results on such a GPU."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native_doubles import paged_runner
from native_models import make
from torch.nn.functional import gelu, linear, silu

from turnwise.engines.native.weights import Weights
from turnwise.kernels import product_table
from turnwise.kernels.hopper import driver as hopper_driver
from turnwise.kernels.hopper import tiles as hopper_tiles
from turnwise.kernels.hopper.driver import ROOM
from turnwise.kernels.hopper.tiles import Tile, fits, gate_tiles, source_of
from turnwise.kernels.product_table import TILES, tile_of

on_hopper = pytest.mark.skipif(
    not hopper_tiles.available(torch.device("cuda", 0)) if torch.cuda.is_available() else True, reason="no Hopper"
)


@pytest.mark.parametrize(("shape", "lines"), TILES.items())
def test_tiles_fit_into_a_multiprocessor_and_the_copy_engines_boxes(shape: tuple[int, int], lines: Any) -> None:
    assert all(low < high for (low, _), (high, _) in pairwise(lines)) and shape[0] % 64 == 0 and shape[1] % 16 == 0
    for tile in (tile for _, tile in lines if tile is not None):
        assert tile.memory(0) <= ROOM and tile.columns % 8 == 0 and 8 <= tile.columns <= 128 and tile.stages >= 2 and tile.group >= 1
        assert {tile.down, tile.across} <= {1, 2} and tile.down * tile.across <= 2


@pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda-bindings and NVRTC, but no GPU")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("tile", "head"), [
    (Tile(128, 4, 2, 1, 16), 0), (Tile(40, 8, 1, 2), 0), (Tile(72, 3, ahead=5), 0), (Tile(96, 5, 1, 2), 1), (Tile(128, 4, 2, 1), 1),
    (Tile(96, 5, 1, 2), 2), (Tile(128, 4, 2, 1), 2),
])  # fmt: skip
def test_the_source_compiles_for_a_hopper_gpu(tile: Tile, head: int, overlap: bool) -> None:
    image = hopper_driver.compiled(source_of(tile, head, gelu=overlap, overlap=overlap))
    assert image.startswith(b"\x7fELF") and hopper_tiles.name_of(head).encode() in image


@pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda-bindings and NVRTC, but no GPU")
def test_a_source_that_does_not_compile_gives_the_compilers_words() -> None:
    with pytest.raises(RuntimeError, match=r"does not compile:\n(.|\n)*COLUMNS"):
        hopper_driver.compiled("int nothing = COLUMNS;")


def test_a_shape_that_was_not_measured_has_no_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Tile(64, 4), Tile(128, 4, 2, 1, 16)
    monkeypatch.setattr(product_table, "TILES", {(64, 256): ((16, None), (128, small), (4096, large))})
    assert [tile_of(rows, 64, 256) for rows in (1, 16, 17, 128, 129, 4097)] == [None, None, small, small, large, None]
    assert tile_of(128, 128, 256) is None


def test_only_plain_rows_of_bfloat16_are_taken() -> None:
    x, weight = torch.zeros(8, 128, dtype=torch.bfloat16), torch.zeros(64, 128, dtype=torch.bfloat16)
    assert fits(x, weight)
    assert not fits(x.float(), weight) and not fits(x.half(), weight.half()) and not fits(x.t().contiguous().t(), weight)
    assert not fits(x[:, :96].contiguous(), weight[:, :96].contiguous()) and not fits(x, weight[:56])
    assert not fits(torch.zeros(8 * 128 + 1, dtype=torch.bfloat16)[1:].view(8, 128), weight)


def test_no_other_gpu_and_no_cpu_has_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper_tiles.available.cache_clear()
    assert not hopper_tiles.available(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not hopper_tiles.available(torch.device("cuda", 0))
    hopper_tiles.available.cache_clear()


@pytest.mark.parametrize("fault", [ImportError("no compiler"), RuntimeError("a kernel for Hopper GPUs does not compile")])
def test_a_compiler_that_is_missing_or_fails_leaves_the_product_to_the_library(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise fault

    hopper_tiles.available.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(hopper_tiles, "find_spec", lambda name: True)
    monkeypatch.setattr(hopper_tiles, "kernel_of", fail)
    with pytest.warns(UserWarning, match=str(fault)):
        assert not hopper_tiles.available(torch.device("cuda", 0))
    hopper_tiles.available.cache_clear()


@pytest.mark.parametrize("on", [True, False])
def test_a_measured_shape_goes_to_the_tiles_if_they_are_there(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """The dispatch, with a stand-in for the kernel."""
    paged_runner(monkeypatch)
    module = sys.modules["turnwise.engines.native.layer_products"]
    weights, tile = Weights(make("qwen2").to(torch.bfloat16)), Tile(64, 4)
    layer = weights.layers[0]
    size, width = layer.gate_up.weight.shape
    asked: list[tuple[int, Tile]] = []

    def kernel(x: torch.Tensor, weight: torch.Tensor, kind: str, tile: Tile, overlap: bool) -> torch.Tensor:
        asked.append((len(x), tile))
        gate, up = linear(x, weight).chunk(2, -1)
        return silu(gate) * up

    there = SimpleNamespace(available=lambda device: on, fits=lambda x, weight: True)
    monkeypatch.setattr(product_table, "TILES", {(width, size): ((4, None), (100, tile))})
    monkeypatch.setattr(module, "since_hopper", lambda device: True)
    monkeypatch.setattr(module, "tiles", there)
    monkeypatch.setattr(module, "gate_tiles", kernel)
    work = module.LayerProducts(weights)
    for rows in (4, 5, 100, 101):
        x = torch.randn(rows, width, dtype=torch.bfloat16)
        gate, up = linear(x, layer.gate_up.weight).chunk(2, -1)
        assert torch.equal(work.mlp(layer, x, parts=False), linear(silu(gate) * up, layer.down.weight))
    assert asked == ([(5, tile), (100, tile)] if on else [])


@on_hopper
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["silu", "gelu"])
@pytest.mark.parametrize("tile", [Tile(64, 4), Tile(72, 5, 1, 2), Tile(40, 8, 2, 1, 3), Tile(128, 4, 2, 1, 16), Tile(112, 2, 1, 2, 1)])
def test_the_kernel_gives_what_float32_gives_for_any_number_of_rows(tile: Tile, kind: str, overlap: bool) -> None:
    torch.manual_seed(0)
    active = silu if kind == "silu" else lambda x: gelu(x, approximate="tanh")
    for rows, width, size in ((1, 64, 8), (63, 128, 200), (128, 256, 1000), (129, 1536, 904), (300, 320, 8960), (5000, 192, 304)):
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(2 * size, width, device="cuda", dtype=torch.bfloat16) * width**-0.5
        gate, up = linear(x.float(), weight.float()).chunk(2, -1)
        expected = active(gate) * up
        for _ in range(3):
            found = gate_tiles(x, weight, kind, tile, overlap).float()
            assert (found - expected).norm() < 6e-3 * expected.norm(), (rows, width, size)
            assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@on_hopper
def test_the_kernel_follows_on_what_is_written_just_before_it_and_can_be_replayed() -> None:
    """With overlap it begins before the kernel in front of it has ended: what that one writes must be there when it is read."""
    torch.manual_seed(0)
    source, x = torch.randn(512, 1536, device="cuda", dtype=torch.bfloat16), torch.empty(512, 1536, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(17920, 1536, device="cuda", dtype=torch.bfloat16) * 1536**-0.5

    def work() -> torch.Tensor:
        x.zero_()
        x.copy_(source)
        return gate_tiles(x, weight, "silu", Tile(96, 5, 1, 2), overlap=True)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    for _ in range(20):
        source.normal_()
        graph.replay()
        gate, up = linear(source.float(), weight.float()).chunk(2, -1)
        expected = silu(gate) * up
        assert (found.float() - expected).norm() < 6e-3 * expected.norm()


@pytest.mark.parametrize("rows", [1, 128, 129, 512, 5000])
def test_tiles_of_an_output_layer_fit_into_a_multiprocessor_and_have_whole_parts(rows: int) -> None:
    head_tiles = pytest.importorskip("turnwise.kernels.hopper.sample", reason="needs triton")
    tile = head_tiles.tile_for(rows)
    assert tile.memory(1) <= ROOM and 2 * tile.columns % hopper_tiles.PIECE == 0 and tile.columns <= 128
    assert tile.memory(2) <= ROOM and 2 * tile.columns % hopper_tiles.STORED == 0 and tile.buffers > 0


@on_hopper
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("tile", [None, Tile(64, 4), Tile(96, 5, 1, 2), Tile(128, 4, 2, 1), Tile(128, 4, 2, 1, 1), Tile(48, 3, 2, 1)])
def test_an_output_layer_that_draws_by_itself_draws_what_logits_give(tile: Tile | None, overlap: bool, truncated: bool) -> None:
    """Greedy rows and others, numbers of rows and words that fill no tile, twins of a word, and numbers that are none."""
    from turnwise.kernels.hopper.sample import draw_product, draw_truncated
    from turnwise.kernels.sample_rows import draw_tokens
    from turnwise.kernels.sample_tiles import Drawing

    draw = draw_truncated if truncated else draw_product
    torch.manual_seed(0)
    for rows, width, words in ((1, 64, 16), (63, 128, 208), (128, 256, 5008), (129, 1536, 20032), (300, 320, 3504), (1000, 192, 304)):
        hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        head = torch.randn(words, width, device="cuda", dtype=torch.bfloat16) * 2 * width**-0.5
        head[words // 2] = head[words // 3]
        rules = ((0.95, 0.0, words), (0.5, 0.0, words), (1.0, 0.0, words), (0.9, 0.01, words), (0.03, 0.0, words), (0.9, 0.0, 7))
        rules = rules if truncated else rules[2:3]
        floats = torch.tensor([[(1.0, 0.7, 1.5)[n % 3], *rules[n // 3 % len(rules)][:2]] for n in range(rows + 1)], device="cuda")
        integers = torch.tensor([[n % 5 == 3, rules[n // 3 % len(rules)][2], n * 7919 - 3] for n in range(rows + 1)], device="cuda")
        slots, places = torch.randperm(rows, device="cuda").int(), torch.arange(rows, device="cuda").int() % 9
        found = []
        for way in range(2):
            tokens, last = (torch.full((rows + 1,), -1, device="cuda") for _ in range(2))
            to = Drawing(slots, places, floats, integers, last, tokens[:rows], torch.full((rows,), 9.0, device="cuda"))
            if way:
                draw(hidden, head, to, tile, overlap)
            else:
                draw_tokens(torch.mm(hidden, head.t(), out_dtype=torch.float32), *to)
            assert torch.equal(last[slots.long()], to.tokens)
            found.append(to)
        same = found[0].tokens == found[1].tokens
        greedy = integers[slots.long(), 0] != 0
        assert (~same).sum() <= max(1, rows // 50) and (greedy & ~same).sum() <= rows // 100, (rows, width, words)
        assert (found[0].logprobs - found[1].logprobs)[same].abs().max() < 1e-4
        hidden[rows // 2] = torch.nan
        draw(hidden, head, found[1], tile, overlap)
        assert found[1].logprobs.isfinite().logical_not().nonzero().flatten().tolist() == [rows // 2]
        assert ((found[1].tokens >= 0) & (found[1].tokens < words)).all()
