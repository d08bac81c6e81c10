"""The kernels between the products of an update, one by one: microseconds, and the share of the rate of a large copy.

    python benchmarks/learner_kernels.py --out FILE.json                 on a GPU, seconds
    python benchmarks/learner_kernels.py --size 0.5b --tokens 16384

Kernels whose programs walk over rows are measured with several numbers of programs and of rows that are read at the same time. Products
are measured with gradients of weights in half precision, in float32, and added to a float32 matrix.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_gpu  # noqa: F401 (first)
import torch
from attention import median_ms
from iteration import SIZES
from results import publish

from turnwise.learn.fused import kernels


def micros(work: Callable[[], Any], repeats: int = 20) -> float:
    """The median time on the GPU, with its cache emptied by what the work itself reads."""
    for _ in range(2):
        work()
    return 1e3 * median_ms(work, repeats)


def rate(took: float, size: float) -> dict[str, float]:
    return {"us": round(took, 1), "tb_per_s": round(size / took / 1e6, 2)}


def walking(tokens: int, size: str) -> dict[str, Any]:
    """Backward norm and backward rotation by programs and stages."""
    hidden, _, _, heads, kv_heads, _ = SIZES[size]
    head = hidden // heads
    grad, more, x = (torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    scales, weight = torch.rand(tokens, device="cuda"), torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
    parts = [torch.randn(tokens, count, head, device="cuda", dtype=torch.bfloat16) for count in (heads, kv_heads, kv_heads)]
    turns = [torch.randn(8192, head, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    positions = torch.arange(tokens, device="cuda") % 8192
    rows, before, found = torch.arange(tokens, device="cuda"), (kernels.PROGRAMS_A_PROCESSOR, kernels.STAGES), {}
    works = {
        "norm": (lambda: kernels.norm_backward(grad, more, x, scales, weight), 8 * hidden * tokens),
        "rotation": (lambda: kernels.rotate_back(*parts, *turns, positions, rows, True), 4 * tokens * head * (heads + 2 * kv_heads)),
    }
    for name, (work, size_read) in works.items():
        for programs in (4, 8, 16, 32):
            for stages in (1, 2, 3):
                kernels.PROGRAMS_A_PROCESSOR, kernels.STAGES = programs, stages
                took = micros(work)
                found[f"{name}, {programs} programs, {stages} stages"] = {
                    "us": round(took, 1),
                    "tb_per_s": round(size_read / took / 1e6, 2),
                }
    kernels.PROGRAMS_A_PROCESSOR, kernels.STAGES = before
    return found


def single(tokens: int, size: str) -> dict[str, Any]:
    """The other kernels as they are."""
    hidden, middle, _, heads, kv_heads, _ = SIZES[size]
    head, joint = hidden // heads, hidden // heads * (heads + 2 * kv_heads)
    x, delta = (torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    both, active = (torch.randn(tokens, count, device="cuda", dtype=torch.bfloat16) for count in (2 * middle, middle))
    qkv, weight = torch.randn(tokens, joint, device="cuda", dtype=torch.bfloat16), torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
    turns = [torch.randn(8192, head, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    rows, positions = torch.arange(tokens, device="cuda"), torch.arange(tokens, device="cuda") % 8192
    partial = torch.randn(1056, joint, device="cuda")
    bare = [torch.randn(tokens, count, head, device="cuda", dtype=torch.bfloat16) for count in (heads, kv_heads, kv_heads)]
    works: dict[str, tuple[Callable[[], Any], int]] = {
        "add and norm": (lambda: kernels.add_norm(x, delta, weight, 1e-6), 8 * hidden * tokens),
        "norm again": (lambda: kernels.add_norm(x, None, weight, 1e-6), 4 * hidden * tokens),
        "widen": (lambda: kernels.widen(x, rows, rows), 4 * hidden * tokens),
        "index_select": (lambda: x.index_select(0, rows), 4 * hidden * tokens),
        "rotate in place": (lambda: kernels.rotate(qkv, *turns, positions, heads, kv_heads, head), 4 * joint * tokens),
        "rotate into rows": (lambda: kernels.rotate(qkv, *turns, positions, heads, kv_heads, head, rows), 4 * joint * tokens),
        "rotate back, no sums": (lambda: kernels.rotate_back(*bare, *turns, positions, rows), 4 * joint * tokens),
        "sum of a gradient": (lambda: qkv.sum(0), 2 * joint * tokens),
        "fold": (lambda: kernels.fold(partial), 4 * joint * 1056),
        "swiglu": (lambda: kernels.swiglu(both), 6 * middle * tokens),
        "swiglu backward": (lambda: kernels.swiglu_backward(both, active), 12 * middle * tokens),
    }
    found = {}
    for name, (work, read) in works.items():
        took = micros(work)
        found[name] = rate(took, read)
    return found


def weight_gradients(tokens: int, size: str) -> dict[str, Any]:
    """Gradients of weights in three ways: TFLOP/s."""
    hidden, middle, _, heads, kv_heads, _ = SIZES[size]
    found = {}
    for name, (outputs, inputs) in {
        "qkv": (hidden // heads * (heads + 2 * kv_heads), hidden),
        "out": (hidden, hidden),
        "gate and up": (2 * middle, hidden),
        "down": (hidden, middle),
    }.items():
        grad, x = (torch.randn(tokens, count, device="cuda", dtype=torch.bfloat16) for count in (outputs, inputs))
        known = torch.zeros(outputs, inputs, device="cuda")
        ways: dict[str, Callable[[], Any]] = {
            "half precision": lambda grad=grad, x=x: grad.t() @ x,
            "float32": lambda grad=grad, x=x: torch.mm(grad.t(), x, out_dtype=torch.float32),
            "added": lambda grad=grad, x=x, known=known: torch.addmm(known, grad.t(), x, out_dtype=torch.float32, out=known),
            "half precision, then added": lambda grad=grad, x=x, known=known: known.add_(grad.t() @ x),
        }
        for way, work in ways.items():
            found[f"{name}, {way}"] = round(2e-6 * tokens * outputs * inputs / micros(work, 10), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[name for name in SIZES if name != "tiny"], default="1.5b")
    parser.add_argument("--tokens", type=int, default=25344)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "size": options.size,
        "tokens": options.tokens,
    }
    report["weight gradients, TFLOP/s"] = weight_gradients(options.tokens, options.size)
    report["kernels"] = single(options.tokens, options.size)
    report["walking kernels"] = walking(options.tokens, options.size)
    publish(report, options.out)


if __name__ == "__main__":
    main()
