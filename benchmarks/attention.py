"""Which attention kernel is fastest for packed sequences: forward and backward, on a GPU.

    python benchmarks/attention.py --out benchmarks/attention.json

12 query heads read 2 key heads of 128 numbers (the 1.5B shape), bfloat16, causal, at 40 × 800 and 3 × 8,500 tokens. TFLOP/s count half of
the square, and 2.5 times that for the backward pass. "ragged" takes sequences of any lengths in one row, as the learner needs; "dense"
takes equal lengths only and shows what the GPU can reach.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import need_gpu, publish
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from turnwise.learn.fused.attention import Frame, attend, attend_backward

HEADS, KV_HEADS, SIZE = 12, 2, 128
SHAPES = {"40x800": (40, 800), "3x8500": (3, 8500)}


def median_ms(work: Callable[[], Any], repeats: int = 10) -> float:
    work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def ours(qkv: torch.Tensor, count: int, length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    offsets = torch.arange(count + 1, dtype=torch.int32, device="cuda") * length
    empty = torch.empty(0, device="cuda")
    frame = Frame([length] * count, offsets, empty, (), (), HEADS, KV_HEADS, SIZE, 1e-6)
    rows = qkv if frame.wide is None else qkv[frame.wide.tokens]  # a layer's rotation puts them there
    out, state = attend(rows, frame)
    grad = torch.randn_like(out)
    return lambda: attend(rows, frame), lambda: attend_backward(grad, rows, out, state, frame)


def new_lengths() -> dict[str, float]:
    """The cost of the first sequence of a length, forward and backward, compared with a later one: cuDNN makes a plan."""
    found = {}
    for name in ("first", "second"):
        start = time.perf_counter()
        for length in (4100, 5000, 6000, 7000):
            qkv = torch.randn(length, (HEADS + 2 * KV_HEADS) * SIZE, device="cuda", dtype=torch.bfloat16)
            for work in ours(qkv, 1, length):
                work()
        torch.cuda.synchronize()
        found[f"{name}_ms"] = round((time.perf_counter() - start) * 250, 2)
    return found


def repeated(qkv: torch.Tensor, count: int, length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.arange(count + 1, dtype=torch.int32, device="cuda") * length
    leaf = qkv.clone().requires_grad_()

    def forward() -> torch.Tensor:
        q, k, v = leaf.view(len(leaf), -1, SIZE).split([HEADS, KV_HEADS, KV_HEADS], 1)
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
        out: torch.Tensor = varlen_attn(q, k, v, offsets, offsets, length, length, window_size=(-1, 0))
        return out

    return with_autograd(forward, leaf)


def dense(backend: SDPBackend) -> Any:
    def make(qkv: torch.Tensor, count: int, length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        leaf = qkv.clone().requires_grad_()

        def forward() -> torch.Tensor:
            q, k, v = leaf.view(count, length, -1, SIZE).split([HEADS, KV_HEADS, KV_HEADS], 2)
            with sdpa_kernel(backend):
                rows = (x.transpose(1, 2) for x in (q, k, v))
                out: torch.Tensor = scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
            return out

        return with_autograd(forward, leaf)

    return make


def with_autograd(forward: Callable[[], torch.Tensor], leaf: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    out = forward()
    grad = torch.randn_like(out)

    def alone() -> None:
        with torch.no_grad():
            forward()

    return alone, lambda: torch.autograd.grad(out, leaf, grad, retain_graph=True)


KERNELS = {
    "the learner's (ragged: flash below 2,048 tokens, cudnn one by one above)": ours,
    "flash, ragged, repeated key heads": repeated,
    "cudnn, dense": dense(SDPBackend.CUDNN_ATTENTION),
    "flash, dense": dense(SDPBackend.FLASH_ATTENTION),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    need_gpu()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, (count, length) in SHAPES.items():
        qkv = torch.randn(count * length, (HEADS + 2 * KV_HEADS) * SIZE, device="cuda", dtype=torch.bfloat16)
        flop = 2 * count * length**2 * HEADS * SIZE
        result[name] = {}
        for kernel, make in KERNELS.items():
            try:
                forward, backward = make(qkv, count, length)
                times = {"forward_ms": median_ms(forward), "backward_ms": median_ms(backward)}
            except Exception as error:
                result[name][kernel] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
                continue
            rates = {"forward_tflops": flop / times["forward_ms"] / 1e9, "backward_tflops": 2.5 * flop / times["backward_ms"] / 1e9}
            result[name][kernel] = {key: round(value, 3) for key, value in (times | rates).items()}
    result["a_new_length"] = new_lengths()
    publish(result, options.out)


if __name__ == "__main__":
    main()
