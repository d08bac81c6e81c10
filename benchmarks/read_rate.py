"""How fast a GPU reads memory and writes nothing, as a decode step's attention does: a kernel in Triton that sums up a large array.

    python benchmarks/read_rate.py

Prints bytes per second for arrays of several sizes and several shapes of a program, next to a copy's rate (reads and writes). `scattered`:
chunks are read in a random order, as pages of a cache are.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from results import need_gpu, publish

CHUNK = 16384  # bytes that are next to each other, as the keys of a page and head are


def reader() -> Any:
    """The kernel; made at its first use, since there is no Triton without a GPU."""
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

    @triton.jit
    def read(source, order, out, count, NUMBERS: tl.constexpr, STAGES: tl.constexpr):
        total = tl.zeros([NUMBERS], tl.int32)
        inside = tl.arange(0, NUMBERS)
        for number in tl.range(tl.program_id(0), count, tl.num_programs(0), num_stages=STAGES):
            total += tl.load(source + tl.load(order + number).to(tl.int64) * NUMBERS + inside)
        tl.store(out + tl.program_id(0), tl.sum(total, 0))

    return read


def rate(gigabytes: float, scattered: bool, programs: int = 528, warps: int = 4, stages: int = 4) -> float:
    """Bytes per second, of recorded launches."""
    from engine_products import graph_us

    chunks = int(gigabytes * 1e9) // CHUNK
    source = torch.ones(chunks * CHUNK // 4, dtype=torch.int32, device="cuda")
    order = (
        torch.randperm(chunks, device="cuda", dtype=torch.int32) if scattered else torch.arange(chunks, device="cuda", dtype=torch.int32)
    )
    out, kernel = torch.empty(programs, dtype=torch.int32, device="cuda"), reader()

    def read() -> None:
        kernel[(programs,)](source, order, out, chunks, NUMBERS=CHUNK // 4, STAGES=stages, num_warps=warps)

    seconds = graph_us([read] * 4) * 1e-6
    assert int(out.sum()) == source.numel(), "not everything was read"
    return source.nbytes / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    need_gpu()
    from engine import ceilings

    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), **ceilings()}
    for gigabytes in (0.6, 4.0, 17.0):
        for scattered in (False, True):
            kind = f"{gigabytes:g} GB{', scattered' if scattered else ''}"
            found[kind] = {
                f"{programs} programs, {stages} stages": rate(gigabytes, scattered, programs, stages=stages)
                for programs, stages in ((264, 4), (528, 4), (1056, 2), (264, 8))
            }
    publish(found, options.out)


if __name__ == "__main__":
    main()
