"""Triton kernels without a GPU, in Triton's interpreter: what families beyond Qwen2 add to them, against plain arithmetic.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_kernels_interpreted.py

They need triton, which torch for CPUs does not bring along, and are slow; without the variable they are skipped.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from fused_cases import run
from gradient_cases import assert_same
from learn_cases import trajectories
from native_models import ask, make, prompt, worst

import turnwise.engines.native.engine as native_engine
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.learn import pack
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import eager

READY = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = pytest.mark.skipif(not READY, reason="needs triton, and TRITON_INTERPRET=1")


def near(found: Any, wanted: Any, bound: float) -> bool:
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return all(
        one.shape == other.shape and bool((one.float() - other.float()).norm() <= bound * other.float().norm()) for one, other in pairs
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("precise", [False, True], ids=["weights rounded", "weights in float32"])
def test_kernels_do_what_their_plain_arithmetic_does(dtype: torch.dtype, bound: float, precise: bool) -> None:
    from turnwise.learn.fused import kernels

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    def factor(size: int) -> torch.Tensor:
        return draw(size).float() if precise else draw(size)

    x, delta, grad, weight = draw(7, 40), draw(7, 40), draw(7, 40), factor(40)
    assert near(kernels.add_norm(x, delta, weight, 1e-6), eager.add_norm(x, delta, weight, 1e-6), bound)
    scales = eager.add_norm(x, None, weight, 1e-6)[2]
    for more in (None, delta):
        assert near(kernels.norm_backward(grad, more, x, scales, weight), eager.norm_backward(grad, more, x, scales, weight), bound)
    parts, known = torch.randn(300, 50, generator=generator), torch.randn(50, generator=generator)
    assert near(kernels.fold(parts), eager.fold(parts), 1e-5)
    assert near(kernels.fold(parts, known.clone()), eager.fold(parts, known.clone()), 1e-5)
    sizes = 4, 2, 32
    qkv, slope, norms = draw(5, 8 * 32), draw(5, 8 * 32), (factor(32), factor(32))
    assert near(kernels.norm_heads(qkv, *norms, *sizes, 1e-6), eager.norm_heads(qkv, *norms, *sizes, 1e-6), bound)
    wanted = eager.norm_heads_backward(slope.clone(), qkv, *norms, *sizes, 1e-6)
    assert near(kernels.norm_heads_backward(slope.clone(), qkv, *norms, *sizes, 1e-6), wanted, bound)
    for kind in ("silu", "gelu_pytorch_tanh"):
        both, slope = draw(5, 60), draw(5, 30)
        assert near(kernels.swiglu(both, kind), eager.swiglu(both, kind), bound)
        wanted_pair = eager.swiglu_backward(both.float(), slope.float(), kind)
        assert near(kernels.swiglu_backward(both.clone(), slope.clone(), kind), wanted_pair, bound)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_rotations_between_rows_and_tokens_do_what_their_plain_arithmetic_does(dtype: torch.dtype, bound: float) -> None:
    from turnwise.learn.fused import kernels

    generator = torch.Generator().manual_seed(0)
    sizes, places = (14, 2, 32), torch.tensor([0, 1, 2, 0, 1, 2, 3])
    angle = torch.randn(8, 16, generator=generator)
    cos, sin = torch.cat([angle.cos()] * 2, -1).to(dtype), torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
    tokens, rows = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6, 6, 6]), torch.tensor([0, 1, 2, 4, 5, 6, 7])
    qkv = torch.randn(7, 18 * 32, generator=generator).to(dtype)
    for own in (None, tokens):
        wanted = eager.rotate(qkv.clone(), cos, sin, places, *sizes, own)
        assert near(kernels.rotate(qkv.clone(), cos, sin, places, *sizes, own), wanted, bound)
    assert torch.equal(kernels.widen(qkv, tokens, rows), eager.widen(qkv, tokens, rows))
    for at in (None, rows):
        parts = [torch.randn(7 if at is None else 10, heads, 32, generator=generator).to(dtype) for heads in (14, 2, 2)]
        wanted_grad, _ = eager.rotate_back(*parts, cos, sin, places, at)
        grad, nothing = kernels.rotate_back(*parts, cos, sin, places, at)
        assert nothing is None and near(grad, wanted_grad, bound)
        grad, sums = kernels.rotate_back(*parts, cos, sin, places, at, summed=True)
        assert near(grad, wanted_grad, bound) and near(kernels.fold(sums), grad.float().sum(0), 1e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3-moe", "gemma3", "smollm3"])
def test_a_learner_with_these_kernels_has_the_gradients_of_the_models_own_layers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.learn.fused import kernels, layers

    packed = pack(trajectories(3, groups=1, size=2))
    own, fused = PackedModel(make(family), fused=False), PackedModel(make(family), fused=True)
    monkeypatch.setattr(layers, "operations", lambda device: kernels)
    (wanted, slopes), (found, found_slopes) = run(own, packed), run(fused, packed)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_same(found_slopes, slopes, 1e-4)


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "gemma3", "smollm3"])
def test_an_engine_with_these_kernels_has_the_logprobs_of_the_model(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import turnwise.engines.native.gpu_runner as gpu

    monkeypatch.setattr(
        native_engine, "make_runner", lambda weights, slots, longest, *rest: gpu.GpuRunner(weights, slots, longest, 16, 16, False)
    )
    model, prompts = make(family), [prompt(36), [*prompt(36), *prompt(3, 1)]]  # more than two pages, more than the window
    found = ask(NativeEngine(model, max_length=64), prompts, Sampling(max_tokens=2))
    assert worst(model, prompts, found) < 1e-4
