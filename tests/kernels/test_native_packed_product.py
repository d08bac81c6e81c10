"""The kernel that multiplies by weights in 4 bits, in Triton's interpreter, next to bitsandbytes' own definition. On a GPU,
tests/gpu/test_native_gpu.py runs it for real."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import need_interpreter
from native_doubles import random
from torch import Tensor

from turnwise.kernels.product_table import packed_blocks

need_interpreter()
needs_library = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (extra 4bit)")
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")
KINDS = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts numbers off where a GPU rounds them to bfloat16, and multiplies their bits."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def right_cast(self: Any, source: Any, kind: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, kind)
        rounded = torch.from_numpy(np.array(source.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(rounded, kind.scalar)

    def right_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (cast(self, one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (a, b))
        return dot(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", right_cast)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", right_dot)


def weight_of(size: int, width: int, block: int, nested: bool, dtype: torch.dtype, seed: int = 0) -> Any:
    """A weight as bitsandbytes stores it: any codes, values and scales."""
    rng = torch.Generator().manual_seed(seed)
    blocks = size * width // block
    codes, table = torch.randint(0, 256, (size * width // 2, 1), generator=rng, dtype=torch.uint8), torch.randn(16, generator=rng)
    state = SimpleNamespace(shape=(size, width), dtype=dtype, blocksize=block, code=table, nested=nested, state2=None, offset=None)
    if nested:
        state.absmax = torch.randint(0, 256, (blocks,), generator=rng, dtype=torch.uint8)
        state.offset = torch.tensor(0.137)
        tops = torch.rand(-(-blocks // 64), generator=rng) * 0.1
        state.state2 = SimpleNamespace(code=torch.randn(256, generator=rng), absmax=tops, blocksize=64)
    else:
        state.absmax = torch.rand(blocks, generator=rng) * 0.1
    return SimpleNamespace(data=codes, quant_state=state)


def unpacked(weight: Any) -> Tensor:
    """The definition."""
    state, codes = weight.quant_state, weight.data.view(-1)
    scales = state.absmax
    if state.nested:
        inner = state.state2
        scales = inner.code[scales.long()] * inner.absmax.repeat_interleave(inner.blocksize)[: len(scales)] + state.offset
    values = state.code[torch.stack([codes >> 4, codes & 15], 1).long()].view(-1, state.blocksize)
    return (values * scales[:, None]).to(state.dtype).view(*state.shape)


@needs_library
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_definition_is_bitsandbytes(kind: str, block: int, nested: bool, dtype: torch.dtype) -> None:
    bits: Any = pytest.importorskip("bitsandbytes").functional
    codes, state = bits.quantize_4bit(
        random(96, 512).to(dtype), blocksize=block, compress_statistics=nested, quant_type=kind, quant_storage=torch.uint8
    )
    assert state.nested == nested and state.blocksize == block
    assert torch.equal(unpacked(SimpleNamespace(data=codes, quant_state=state)), bits.dequantize_4bit(codes, state))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("block", "nested"), [(32, True), (64, False), (64, True), (128, True), (256, False), (512, True)])
def test_every_code_is_unpacked_as_its_definition_says(dtype: torch.dtype, block: int, nested: bool) -> None:
    """Rows of which one number is one, and the rest is zero, pick columns of the weight."""
    from turnwise.kernels.product_4bit import fits, multiply

    width = 512
    weight = weight_of(70, width, block, nested, dtype)
    expected, eye = unpacked(weight), torch.eye(width, dtype=dtype)
    for rows, part in ((64, 128), (32, 256)):
        blocks = packed_blocks(rows, width, 70, 3, 9)
        assert blocks is not None and blocks.part == part and blocks.split == 2
        for first in range(0, width, rows):
            x = eye[first : first + rows].contiguous()
            assert fits(x, weight) and torch.equal(multiply(x, [weight], None, blocks), expected[:, first : first + rows].t())


def close(found: Tensor, product: Tensor, bias: Tensor | None = None) -> bool:
    """Equal up to the order of sums: the last bit of a few numbers."""
    expected = product if bias is None else product + bias
    near = (found.float() - expected.float()).abs() <= torch.finfo(found.dtype).eps * (product.abs() + expected.abs()).float() + 1e-5
    return bool(near.all()) and bool((found == expected).float().mean() > 0.98)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("rows", [2, 7, 16, 33])
@pytest.mark.parametrize(("split", "nested"), [(1, True), (2, False), (3, True)])
def test_a_product_is_that_of_the_unpacked_weights(dtype: torch.dtype, rows: int, split: int, nested: bool) -> None:
    """Several weights that read the same rows, with a bias; five steps among three programs."""
    from turnwise.kernels.product_4bit import multiply

    width, sizes = 640, [150, 40, 64]
    weights = [weight_of(size, width, 64, nested, dtype, seed) for seed, size in enumerate(sizes)]
    blocks = packed_blocks(rows, width, max(sizes), 3, 9)
    assert blocks is not None and rows <= blocks.rows
    x, bias = random(rows, width).to(dtype), random(sum(sizes), seed=1).to(dtype)
    expected = (x.float() @ torch.cat([unpacked(weight) for weight in weights]).float().t()).to(dtype)
    for added in (None, bias):
        found = multiply(x, weights, added, blocks._replace(split=split))
        assert found.shape == (rows, sum(sizes)) and found.dtype == dtype
        assert close(found, expected, added)


def test_a_kernel_that_cannot_be_compiled_is_said_once_and_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.kernels import product_4bit as module

    tried: list[int] = []

    def fail(x: Tensor, *_: Any) -> Tensor:
        tried.append(len(x))
        if len(x) == 2:
            raise torch.OutOfMemoryError("no memory")
        raise RuntimeError("PassManager::run failed\nand more")

    monkeypatch.setattr(module, "_refused", set())
    monkeypatch.setattr(module, "multiply", fail)
    weight = weight_of(64, 256, 64, True, torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError):
        module.packed_product(random(2, 256).bfloat16(), [weight], None)
    with pytest.warns(UserWarning, match="does not run on cpu, bitsandbytes multiplies instead: PassManager::run failed$"):
        assert module.packed_product(random(4, 256).bfloat16(), [weight], None) is None
    assert module.packed_product(random(5, 256).bfloat16(), [weight], None) is None and tried == [2, 4], "the same blocks, not tried again"
    with pytest.warns(UserWarning):
        assert module.packed_product(random(16, 256).bfloat16(), [weight], None) is None


def test_what_the_kernel_does_not_read_is_left_to_the_library() -> None:
    from turnwise.kernels.product_4bit import fits, packed_product

    dtype, weight = torch.bfloat16, weight_of(64, 256, 64, True, torch.bfloat16)
    x = random(4, 256).to(dtype)
    assert fits(x, weight) and packed_product(x, [weight], None) is not None
    assert packed_product(x[:1], [weight], None) is None and packed_product(random(65, 256).to(dtype), [weight], None) is None
    assert not fits(x.half(), weight) and not fits(x.float(), weight), "another dtype than the weight's"
    assert not fits(x.t().contiguous().t(), weight), "not contiguous"
    assert not fits(random(4, 320).to(dtype)[:, :256], weight)
    assert not fits(random(5, 256).to(dtype).view(-1)[4:1028].view(4, 256), weight), "not at 16 bytes"
    assert not fits(random(4, 96).to(dtype), weight_of(64, 96, 64, False, dtype)), "blocks that go on in the next row"
    narrow = weight_of(64, 192, 64, False, dtype)
    assert packed_product(random(4, 192).to(dtype), [narrow], None) is None, "no whole number of parts"
    weight.quant_state.state2.absmax = weight.quant_state.state2.absmax.half()
    assert not fits(x, weight)
