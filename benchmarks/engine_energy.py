"""The energy of a decode step and of its kernels. A GPU at its power limit lowers its clock, and then a step is as fast as it is frugal.

    python benchmarks/engine_energy.py                                            # 1.5B, 512 rows at 1,152 tokens; about a minute
    python benchmarks/engine_energy.py --parts steps --names now library          # settings of engine_tuning.py

Every piece of work is recorded as a graph and replayed for 2 s without anything else between, the last 1.5 of which count: the mean
milliseconds, watts and joules per replay (the GPU's own counter), and the clock. `engine_tuning.py` replays its settings in turn, so that
all of them share one clock: that compares their work, not what they do to the clock. The kernels are those of all layers.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import on_gpu  # noqa: F401 (first)
import torch
from engine_products import recorded
from engine_tuning import CASES, SETTINGS, Step
from read_rate import CHUNK, reader
from results import publish

from turnwise.engines.native import hopper_attention, paged_attention
from turnwise.engines.native.gate_tiles import gate_tiles
from turnwise.engines.native.hopper_tiles import Tile

WARM, COUNTED = 0.5, 1.5  # seconds
GATES = {
    "gate": Tile(96, 5, 1, 2),
    "gate, 128 columns, down": Tile(128, 4, 2, 1),
    "gate, 96 columns, alone": Tile(96, 5, 1, 1),
}


class Meter:
    """A GPU's own counters."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._library.nvmlInit_v2()
        name = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        if self._library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._device)):
            raise SystemExit("This measurement reads the energy counter of an NVIDIA GPU, and the driver does not let it.")

    def joules(self) -> float:
        found = ctypes.c_ulonglong()
        self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(found))
        return found.value * 1e-3

    def megahertz(self) -> int:
        found = ctypes.c_uint()
        self._library.nvmlDeviceGetClockInfo(self._device, 1, ctypes.byref(found))
        return found.value


def sustained(replay: Callable[[], Any], meter: Meter) -> dict[str, float]:
    """Of one replay, after the GPU has got used to it."""
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    torch.cuda.synchronize()
    batch = max(1, int(0.05 / (start.elapsed_time(end) * 1e-3)))
    begun, spans, clocks, last = time.perf_counter(), [], [], meter.joules()
    changes: list[tuple[float, float]] = []  # of the counter, ten times per second
    while (now := time.perf_counter()) - begun < WARM + COUNTED:
        start.record()
        for _ in range(batch):
            replay()
        end.record()
        warm = now - begun > WARM
        clocks += [meter.megahertz()] if warm else []
        while not end.query():
            if (joules := meter.joules()) != last:
                changes += [(time.perf_counter(), joules)] if warm else []
                last = joules
        spans += [start.elapsed_time(end) / batch] if warm else []
    ms = statistics.median(spans)
    watt = (changes[-1][1] - changes[0][1]) / (changes[-1][0] - changes[0][0])
    return {"ms": ms, "watt": watt, "joule": watt * ms * 1e-3, "megahertz": statistics.mean(clocks)}


def kernels_of(step: Step) -> Iterator[tuple[str, torch.cuda.CUDAGraph]]:
    """Each kind of work of a step, for all layers."""
    runner, lanes = step.runner, step.lanes
    layers, shape, products = runner.weights.layers, runner.weights.shape, runner._products
    slots, positions = step.control[0], step.control[1]
    x = torch.randn(lanes, layers[0].gate_up.weight.shape[1], device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(lanes, layers[0].down.weight.shape[1], device="cuda", dtype=torch.bfloat16)
    qkv = torch.randn(lanes, sum(layers[0].qkv.sizes), device="cuda", dtype=torch.bfloat16)
    given = runner.tables, slots, positions, shape, runner._arrivals
    for name, attend in (("attention", hopper_attention.attend_rows), ("attention in Triton", paged_attention.attend_singles)):
        yield name, recorded([partial(attend, qkv, runner.cache[number], layer, *given) for number, layer in enumerate(layers)])
    chunks = runner.cache[0].nbytes // CHUNK
    used = 2 * int(-(-(positions.long() + 1) // runner.page_size).sum()) * shape.kv_heads
    order, out = torch.randperm(chunks, device="cuda", dtype=torch.int32), torch.empty(528, dtype=torch.int32, device="cuda")
    read = reader()

    def only_read(number: int) -> None:
        read[(528,)](runner.cache[number].view(torch.int32), order, out, used, NUMBERS=CHUNK // 4, STAGES=4, num_warps=4)

    yield "the same pages, only read", recorded([partial(only_read, number) for number in range(len(layers))])
    for name, tile in GATES.items():
        yield name, recorded([partial(gate_tiles, x, layer.gate_up.weight, runner.weights.shape.activation, tile) for layer in layers])
    yield "gate, library", recorded([partial(layer.gate_up, x) for layer in layers])
    yield "down", recorded([partial(products._summed, "down", layer.down, wide, True) for layer in layers])
    yield "qkv", recorded([partial(products.qkv, layer, x, True) for layer in layers])
    yield "out", recorded([partial(products.out, layer, x, True) for layer in layers])
    yield "norm", recorded([partial(products.norm, x.clone(), x, layer.before_mlp) for layer in layers for _ in range(2)])
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    yield "a product of 8,192 × 8,192 matrices", recorded([lambda: left @ right])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.5b")
    parser.add_argument("--case", choices=CASES, default="512 at 1152")
    parser.add_argument("--parts", nargs="+", choices=("steps", "kernels"), default=["steps", "kernels"])
    parser.add_argument("--names", nargs="+", choices=SETTINGS, default=["now", "attention in Triton", "library"])
    parser.add_argument("--rounds", type=int, default=1, help="how often the settings are measured, one after the other")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    step, meter = Step(options.shape), Meter()
    step.prepare(*CASES[options.case])
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": options.shape,
        "case": options.case,
    }

    def keep(part: str, name: str, found: dict[str, float]) -> None:
        result.setdefault(part, {}).setdefault(name, []).append(found)
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()), flush=True)

    if "steps" in options.parts:
        graphs = {name: step.record(name)[0] for name in options.names}
        for _ in range(options.rounds):
            for name, graph in graphs.items():
                keep("steps", name, sustained(graph.replay, meter))
        step.record("now")
    if "kernels" in options.parts:
        with torch.no_grad():
            for name, graph in kernels_of(step):
                keep("kernels", name, sustained(graph.replay, meter))
    publish(result, options.out)


if __name__ == "__main__":
    main()
