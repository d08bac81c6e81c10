"""The constants of `turnwise cluster plan` that are fitted to measurements: what the newest results of the other benchmarks give.

    python benchmarks/cluster_fit.py        prints every constant beside the one in use; nothing runs on a GPU

GPUs of one kind differ by several per cent. So every figure is compared with a floor at the rates that were measured in the same run, and a
constant is what the figure has beyond that floor. `Machine` in turnwise/planner/times.py has them, rounded. If a
newer result is named here, change the constants there, run benchmarks/cluster_plan.py and bring docs/cluster-planning.md up to date.
The constants of credit and packing are not among these: see the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.learn.shapes import SHAPES
from turnwise.planner.simulate import Work
from turnwise.planner.times import EngineTimes, LearnerTimes, Machine

HERE = Path(__file__).parent
STEPS = "engine_steps_tiles"  # decode steps and prompts
ATTENTION = "engine_steps"  # attention alone, at two lengths
LEARNER, BATCH = "learner-1.5b-now", "learner-1.5b"  # scoring and updates; the older file says how large their batches are
ITERATION = "iteration-window-tiles"  # the reference's log-probs with the kernel for gated products
KERNEL = "264 programs, 2 warps, 5 stages, merged inside"  # the way of attention that the engine takes
SHAPE = SHAPES["1.5b"]  # all of them are about this model


def measured(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def fitted() -> dict[str, float]:
    """Every constant by its name in `Machine`."""
    cache_read = fit_cache_read()
    layer, lane = fit_decode(cache_read)
    found = {"cache_read": cache_read, "decode_layer": layer, "decode_lane": lane, "prefill_unit": fit_prefill(cache_read, layer, lane)}
    for name, update in (("score", False), ("update", True)):
        found[f"{name}_unit"], found[f"{name}_attention"] = fit_learner(update)
    return found | {"score_unit": fit_reference(found["score_attention"])}


def fit_cache_read() -> float:
    """What more tokens cost attention: its bytes from 1,152 to 4,400 tokens per row, at the rate of copies, as a share of its time."""
    told = measured(ATTENTION)
    more = [told["attention"][f"128 lanes at {context}"][KERNEL] for context in (1152, 4400)]
    read = 128 * (4400 - 1152) * SHAPE.cache_bytes / told["copy_bytes_per_s"]
    return float(read / (SHAPE.layers * 1e-6 * (more[1] - more[0])))


def run_of_steps(cache_read: float, **constants: float) -> EngineTimes:
    """The engine on the machine of the measured steps; constants that are not given are 0."""
    told = measured(STEPS)
    rates = {"copy_bytes_per_s": told["copy_bytes_per_s"], "flop_per_s": told["matmul_flop_per_s"], "cache_read": cache_read}
    return EngineTimes(SHAPE, Machine(**(dict.fromkeys(("decode_layer", "decode_lane", "prefill_unit"), 0.0) | rates | constants)))


def fit_decode(cache_read: float) -> tuple[float, float]:
    """Seconds per layer and per sequence: exact for steps of 128 and 512 rows."""
    told, floor = measured(STEPS)["decode"], run_of_steps(cache_read)
    few, many = (1e-3 * told[f"{lanes} rows, top-p 1.0, now"] - floor.decode(lanes, 1152) for lanes in (128, 512))
    lane = (many - few) / (512 - 128)
    return (few - 128 * lane) / SHAPE.layers, lane


def fit_prefill(cache_read: float, layer: float, lane: float) -> float:
    """Exact for 128 prompts of 1,024 tokens with responses of 128."""
    times = run_of_steps(cache_read, decode_layer=layer, decode_lane=lane)
    floor = times.prefill(128 * 1024, 512) + 127 * times.decode(128, 1024 + 64)
    return float((measured(STEPS)["whole"]["now"]["128 × (1,024 + 128)"] - floor) / (SHAPE.layers * SHAPE.hidden * 128 * 1024))


def learner_seconds(rate: float, unit: float, attention: float, update: bool, tokens: np.ndarray, sampled: np.ndarray) -> float:
    name = "update" if update else "score"
    machine = Machine(flop_per_s=rate, **{f"{name}_unit": unit, f"{name}_attention": attention})
    return float(LearnerTimes(SHAPE, machine).seconds(tokens, sampled, update).sum())


def fit_learner(update: bool) -> tuple[float, float]:
    """Elementwise work, and how much slower attention is: exact for short sequences and for long ones."""
    part, factors, beyond = "packed" if update else "scoring_alone", [], []
    for one, batch in zip(measured(LEARNER)["compared"], measured(BATCH)["compared"], strict=True):
        number, rate = batch["sequences"], 1e12 * one[part]["tflops"] / one[part]["share_of_ceiling"]
        tokens, sampled = (np.full(number, batch[f"{kind}_tokens"] / number) for kind in ("packed", "response"))
        floor, with_attention = (learner_seconds(rate, 0.0, attention, update, tokens, sampled) for attention in (0.0, 1.0))
        factors.append([SHAPE.layers * SHAPE.hidden * tokens.sum(), with_attention - floor])
        beyond.append(one[part]["seconds"] - floor - (LearnerTimes(SHAPE, Machine()).optimise() if update else 0.0))
    unit, attention = np.linalg.solve(np.array(factors), np.array(beyond))
    return float(unit), float(attention)


def fit_reference(attention: float) -> float:
    """Elementwise work of scoring: exact for the reference's log-probs of a whole iteration."""
    told = measured(ITERATION)
    shape, rate = told["shape"], 1e12 * told["rates"]["matmul_flop_per_s"]
    work = Work(groups=shape["groups"], group_size=shape["members"], turns=shape["turns"], context=shape["context"], success=None)
    batch = work.sequences(range(work.groups))
    assert batch.tokens.sum() == told["tokens_forward"], "the sequences are those that were measured"
    floor = learner_seconds(rate, 0.0, attention, False, batch.tokens, batch.sampled)
    return float((told["seconds"]["reference"] - floor) / (SHAPE.layers * SHAPE.hidden * batch.tokens.sum()))


def main() -> None:
    print(f"{'constant':18}{'fitted':>12}{'in use':>12}{'difference':>12}")
    for name, value in fitted().items():
        used = getattr(Machine(), name)
        print(f"{name:18}{value:12.4g}{used:12.4g}{100 * (used / value - 1):+10.1f} %")


if __name__ == "__main__":
    main()
