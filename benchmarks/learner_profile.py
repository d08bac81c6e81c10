"""What an update spends its time on: counted from operations and bytes, and measured kernel by kernel with torch's profiler.

    python benchmarks/learner_profile.py --count                        the count alone, without a GPU
    python benchmarks/learner_profile.py --out FILE.json                both, on a GPU, in less than a minute
    python benchmarks/learner_profile.py --context window --out FILE.json
    python benchmarks/learner_profile.py --games --steps 4 --tokens 16384 --out FILE.json
    python benchmarks/learner_profile.py --size tiny --out FILE.json    seconds, on a CPU

No rollouts: trajectories of random tokens in the shape of `iteration.py`, as many as a few optimiser steps have (256 turns each). Old and
reference log-probs are computed once before. Each variant switches one thing off that makes an update faster, over the same steps:

    all          as it is
    no slopes    the output layer computes its logits again in the backward pass
    no inputs    normed states and activations are computed again in the backward pass
    one by one   every long sequence is a call of its own
    in turn      a step is made after the one before has ended
    by autograd  gradients are rounded to half precision, and added up by passes of their own

Kernels are counted by kind, per optimiser step's micro-batch and layer too, and `often` names those of a kind that are launched most.
`calls` are the host's calls of the driver, which are not kernels.

The count of a part is the time that its operations take at the rate of a large matrix product, and its bytes at the rate of a large copy,
whichever is longer; attention has the rates of `attention.json`. Operations that are computed again count here, unlike in the floor.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from iteration import SIZES, TINY, Shape, ceilings, make_model
from kept import watch
from results import need_gpu, publish

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.learn.fused import attention
from turnwise.learn.fused.stack import Kept
from turnwise.learn.homes import adds_in_place, home_of
from turnwise.learn.update import Update
from turnwise.objectives import Loss

HERE = Path(__file__).parent
RATES = {"matmul_flop_per_s": 792.8e12, "copy_bytes_per_s": 4.27e12}  # of iteration-full.json, for a count without a GPU
VARIANTS = ("no slopes", "no inputs", "one by one", "in turn", "by autograd")
GAMES = Shape(context="full", size="0.5b", turns=26, opening=250, observation=26, response=8, turns_a_step=26 * 32)  # 1,108 tokens each
KINDS = {  # parts of a kernel's name
    "attention": ("cudnn", "flash", "sdpa", "fmha", "mha"),
    "optimiser": ("adam", "multi_tensor", "lpnorm", "foreach"),
    "logits": ("_pick", "_slopes"),
    "activation": ("_swiglu",),
    "norms and rotations": ("_add_norm", "_norm_backward", "_rotate", "_norm_heads", "_fold"),
    "products": ("nvjet", "gemm", "cutlass", "splitk", "cublas"),
    "copies": ("memcpy", "memset", "copy", "index", "gather", "cat", "fill", "_widen"),
}


def kind_of(name: str) -> str:
    """What a kernel is for, by its name."""
    low = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in low for part in parts)), "other")


# -- the count --------------------------------------------------------------------------------------------------------------------------


def counts(shape: Shape, steps: int, again: int = 0, slopes: bool = True, groups: bool = True, direct: bool = True) -> dict[str, Any]:
    """Operations and bytes of some optimiser steps of 256 turns. `again`: layers whose MLP is computed again in a backward pass. `direct`:
    inputs of products are kept, products add up gradients, and rotations put rows where attention reads them."""
    hidden, middle, layers, heads, kv_heads, words = SIZES[shape.size]
    keys = hidden // heads * kv_heads
    per_layer = 2 * hidden**2 + 2 * hidden * keys + 3 * hidden * middle
    sequences = steps * shape.turns_a_step / (shape.turns if shape.context == "full" else 1)
    tokens, responses = sequences * shape.longest, steps * shape.turns_a_step * shape.response
    parts, parameters = max(1.0, sequences * shape.longest / 32768), layers * per_layer + words * hidden
    reach = 2.0 * layers * hidden * sequences * shape.longest**2
    long = shape.longest >= attention.LONG
    token = layers * tokens * 2.0  # bytes of one number in 16 bits, for every token of every layer
    copied = 4 * hidden if direct else (7 * hidden + 14 * keys + 14 * hidden if groups else 6 * hidden + 26 * keys)
    turned, back = hidden + keys * (2 if long and direct else 1), hidden + 2 * keys
    logits = (14 if slopes else 22) + (4 if slopes else 0)
    return {
        "products of layers": {"flop": 6.0 * layers * per_layer * tokens + 4.0 * hidden * middle * again * tokens},
        "attention, forward": {"flop": reach},
        "attention, backward": {"flop": 2.5 * reach},
        "copies for attention": {"bytes": token * copied if long else 0.0},
        "products of the output layer": {"flop": (6.0 if slopes else 8.0) * hidden * words * responses},
        "passes over logits": {"bytes": float(logits * words * responses) + (0 if slopes else 16.0 * words * hidden * responses / 1767)},
        "activation": {"bytes": token * (3 + (5 if direct else 6)) * middle},
        "norms": {"bytes": token * (2 * 4 + (0 if direct else 2 * 2) + 2 * 4) * hidden},
        "rotations, biases": {"bytes": token * (2 * turned + (2 if direct else 3) * back)},
        "adding gradients up": {"bytes": (6.0 if direct else 12.0) * parameters * parts},
        "optimiser": {"bytes": (28.0 + 4.0 + 6.0) * parameters * steps},
    }


def estimate(found: dict[str, dict[str, float]], rates: dict[str, float], long: bool, groups: bool) -> dict[str, float]:
    """Seconds of each part. Long sequences in groups have the rate of equal lengths in one call."""
    known = json.loads((HERE / "attention.json").read_text(encoding="utf-8"))["3x8500" if long else "40x800"]
    kernel = "cudnn, dense" if long and groups else "the learner's"
    best = next(own for name, own in known.items() if name.startswith(kernel))
    seconds = {}
    for name, own in found.items():
        rate = rates["matmul_flop_per_s"]
        if name.startswith("attention"):
            rate = 1e12 * best[f"{name.split(', ')[1]}_tflops"]
        seconds[name] = max(own.get("flop", 0.0) / rate, own.get("bytes", 0.0) / rates["copy_bytes_per_s"])
    return seconds


def counted(shape: Shape, steps: int, rates: dict[str, float]) -> dict[str, Any]:
    """The count of a few variants, and the share of the ceiling that each would reach."""
    long, found = shape.longest >= attention.LONG, {}
    variants: dict[str, dict[str, bool]] = {"as it is": {}, "before": {"slopes": False, "groups": False, "direct": False}}
    for name, options in variants.items():
        own = counts(shape, steps, **options)  # type: ignore[arg-type]
        seconds = estimate(own, rates, long, options.get("groups", True))
        useful = sum(own[part]["flop"] for part in ("products of layers",)) + 3 * own["attention, forward"]["flop"]
        useful += 6.0 * SIZES[shape.size][0] * SIZES[shape.size][-1] * steps * shape.turns_a_step * shape.response
        floor, total = useful / rates["matmul_flop_per_s"], sum(seconds.values())
        found[name] = {
            "seconds": {part: round(value, 3) for part, value in seconds.items()},
            "total": round(total, 2),
            "floor": round(floor, 2),
            "share": round(floor / total, 3),
        }
    return found


# -- the measurement --------------------------------------------------------------------------------------------------------------------


def make_batch(shape: Shape, steps: int) -> Batch:
    """Trajectories of random tokens for so many optimiser steps."""
    rng, words, found = np.random.default_rng(0), SIZES[shape.size][-1], []
    for number in range(max(1, -(-steps * shape.turns_a_step // shape.turns))):
        own, past = [], list[int]()
        for t in range(shape.turns):
            fresh = shape.prompt if shape.context == "window" else shape.opening if t == 0 else shape.observation
            prompt = [*(past if shape.context == "full" else ()), *rng.integers(0, words, fresh).tolist()]
            said = rng.integers(0, words, shape.response).tolist()
            past = [*prompt, *said]
            own.append(Turn(anchor=t, reward=0.0, prompt_ids=prompt, response_ids=said, logprobs=[-float(np.log(words))] * len(said)))
        found.append(Trajectory(number // shape.members, number, turns=own))
    batch = Batch.of(found)
    return batch.with_columns({"turn.advantage": rng.normal(size=len(batch))})


@contextmanager
def variant(name: str, learner: Learner) -> Iterator[None]:
    """The learner without one of the things that make it faster."""
    prepare, runs, ahead = learner.memory.prepare, attention.runs_of, Update._look_ahead
    homes = {parameter: parameter.home for parameter in learner.model.parameters() if home_of(parameter) is not None}
    try:
        if name == "no slopes":
            learner.memory.prepare = lambda tokens, rows=0: prepare(tokens)  # type: ignore[method-assign]
        if name == "no inputs":
            learner.memory._kept = lambda tokens, room, layers: Kept(*layers)  # type: ignore[method-assign]
        if name == "one by one":
            attention.runs_of = lambda frame, fast, together: runs(frame, fast, False)
        if name == "in turn":
            Update._look_ahead = lambda self: None  # type: ignore[method-assign]
        for parameter in homes if name == "by autograd" else ():
            parameter.home = None
        yield
    finally:
        learner.memory.prepare, attention.runs_of, Update._look_ahead = prepare, runs, ahead  # type: ignore[method-assign]
        learner.memory.__dict__.pop("_kept", None)
        for parameter, home in homes.items():
            parameter.home = home


def timed(work: Callable[[], Any]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def kernels(work: Callable[[], Any], passes: int = 1, shown: int = 40) -> dict[str, Any]:
    """Kernels by time and number, by kind; and when none ran. `passes`: layers times micro-batches, which numbers are divided by."""
    device, activity = torch.cuda.is_available(), torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if device else activity.CPU]) as profile:
        seconds = timed(work)
    own_time, events = "self_device_time_total" if device else "self_cpu_time_total", profile.key_averages()
    on_device = [own for own in events if not device or own.device_type == torch.autograd.DeviceType.CUDA]
    rows = sorted(((own.key, getattr(own, own_time), own.count) for own in on_device), key=lambda row: -row[1])
    calls = sorted(((own.count, own.key) for own in events if own not in on_device), reverse=True)
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for name, micros, count in rows:
        kinds[kind_of(name)][0] += micros / 1e6
        kinds[kind_of(name)][1] += count
    busy, launches = sum(own[0] for own in kinds.values()), sum(own[1] for own in kinds.values())
    return {
        "seconds": round(seconds, 3),
        "busy": round(busy, 3),
        "idle": round(seconds - busy, 3),
        "launches": int(launches),
        "launches per layer and micro-batch": round(launches / passes, 1),
        "kinds": {
            kind: {"seconds": round(own[0], 3), "kernels": int(own[1]), "per layer and micro-batch": round(own[1] / passes, 1)}
            for kind, own in sorted(kinds.items(), key=lambda x: -x[1][0])
        },
        "often": {kind: _often(rows, kind) for kind in ("other", "copies", "norms and rotations")},
        "calls": {name[:60]: count for count, name in calls[:12]},
        "kernels": [{"name": name[:120], "ms": round(micros / 1e3, 2), "count": count} for name, micros, count in rows[:shown]],
    }


def _often(rows: Sequence[tuple[str, float, int]], kind: str, shown: int = 12) -> list[dict[str, Any]]:
    """The kernels of a kind that are launched most often. Names of templates differ late, so both ends are kept."""
    own = sorted((row for row in rows if kind_of(row[0]) == kind), key=lambda row: -row[2])[:shown]
    return [
        {"count": count, "ms": round(micros / 1e3, 2), "name": name if len(name) <= 200 else f"{name[:140]} … {name[-56:]}"}
        for name, micros, count in own
    ]


def products(shape: Shape, rates: dict[str, float]) -> dict[str, Any]:
    """Every product of a layer and of the output layer alone: operations per second, and their share of the ceiling. Gradients of weights
    are measured in both orders: as they are, and transposed."""
    hidden, middle, _, heads, kv_heads, words = SIZES[shape.size]
    device, dtype = ("cuda", torch.bfloat16) if shape.size != "tiny" else ("cpu", torch.float32)
    tokens = max(1, 32768 // shape.longest) * shape.longest if shape.size != "tiny" else 64
    sizes = {"qkv": (hidden, hidden + 2 * hidden // heads * kv_heads), "out": (hidden, hidden), "gate and up": (hidden, 2 * middle)}
    found = {}
    for name, (inputs, outputs) in (sizes | {"down": (middle, hidden), "words": (hidden, words)}).items():
        rows = tokens if name != "words" else min(tokens, 1767)  # the output layer computes by pieces
        x, weight, grad = (torch.randn(*size, device=device, dtype=dtype) for size in ((rows, inputs), (outputs, inputs), (rows, outputs)))
        ways = {
            "forward": lambda x=x, weight=weight: x @ weight.t(),
            "input": lambda grad=grad, weight=weight: grad @ weight,
            "weight": lambda x=x, grad=grad: grad.t() @ x,
            "weight, transposed": lambda x=x, grad=grad: (x.t() @ grad).t(),
        }
        for way, work in ways.items():
            timed(work)
            rate = 2.0 * rows * inputs * outputs * 5 / timed(lambda work=work: [work() for _ in range(5)])
            found[f"{name}, {way}"] = {"tflops": round(rate / 1e12, 1), "share": round(rate / rates["matmul_flop_per_s"], 3)}
    return found


def measured(shape: Shape, steps: int, rates: dict[str, float], repeats: int = 2, tokens: int = 0) -> dict[str, Any]:
    device = "cuda" if shape.size != "tiny" else "cpu"
    settings = LearnerSettings(
        loss=Loss(kl_coef=0.01),
        dtype="bfloat16" if device == "cuda" else "float32",
        minibatch_size=shape.turns_a_step,
        minibatch_unit="turn",
        tokens_per_batch=tokens,
        old_logprobs="learner",
        optimiser=OptimiserSettings(lr=1e-6),
    )
    learner = Learner(make_model(shape, device), settings)
    gc.collect()
    kept = watch(learner)
    batch = learner.annotate(make_batch(shape, steps))  # old and reference log-probs once, for all variants
    floor = counted(shape, steps, rates)["as it is"]["floor"]
    first = learner.update(batch)  # plans, kernels and moments too
    found: dict[str, Any] = {"tokens": int(first["tokens_forward"]), "kept": kept, "variants": {}}
    if device == "cuda":
        found["products add up gradients"] = adds_in_place(torch.bfloat16)
        found["peak_gb"] = round(first["memory_peak_gib"] * 2**30 / 1e9, 1)
    for name in ("all", *VARIANTS, "all again"):
        with variant(name, learner):
            seconds = [timed(lambda: learner.update(batch)) for _ in range(repeats if name == "all" else 1)]
        found["variants"][name] = {"seconds": round(min(seconds), 3), "share": round(floor / min(seconds), 3)}
    parts = -(-found["tokens"] // max(1, learner.settings.tokens_per_batch // shape.longest * shape.longest))
    found["profile"] = kernels(lambda: learner.update(batch), SIZES[shape.size][2] * max(parts, steps))
    found["products"] = products(shape, rates)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", choices=("window", "full"), default="full")
    parser.add_argument("--size", choices=sorted(SIZES), default="1.5b")
    parser.add_argument("--steps", type=int, default=3, help="optimiser steps of 256 turns that are measured")
    parser.add_argument("--games", action="store_true", help="a 0.5B model and sequences as those of recipes/alfworld-0.5b-gigpo.toml")
    parser.add_argument("--tokens", type=int, default=0, help="tokens of a micro-batch; 0: as the learner chooses")
    parser.add_argument("--count", action="store_true", help="count the steps of a whole iteration (25), and measure nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    base = TINY if options.size == "tiny" else Shape(size=options.size)
    shape = GAMES if options.games else Shape(**{**base.__dict__, "context": options.context})
    if options.count:
        publish({"context": shape.context, "counted": counted(shape, 25, RATES)}, options.out)
        return
    if shape.size != "tiny":
        need_gpu("--size tiny, or --count, which only counts")
    rates = ceilings() if shape.size != "tiny" else {"matmul_flop_per_s": 5e10, "copy_bytes_per_s": 1e10}
    report: dict[str, Any] = {
        "context": shape.context,
        "size": shape.size,
        "steps": options.steps,
        "torch": torch.__version__,
        "rates": rates,
    }
    report["machine"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    report |= {"counted": counted(shape, options.steps, rates)}
    publish(report | {"measured": measured(shape, options.steps, rates, tokens=options.tokens)}, options.out)


if __name__ == "__main__":
    main()
