"""How many threads a model of a given size uses well: alone, and next to another process that also computes.

    python benchmarks/threads.py --write

For each size: the time of a decoding step (64 rows, one token each) and of a training step (1,024 tokens, forward and backward), by
number of threads, as a ratio to one thread. `beside` is the same while another process does the same with as many threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.util.threads import cores, wait_quietly

HERE = Path(__file__).parent
SIZES = {"0.5M": (2, 128, 2), "3M": (4, 256, 4), "13M": (4, 512, 8), "50M": (4, 1024, 16)}
WORDS, SECONDS = 600, 2.0


def work(size: str, threads: int, seconds: float) -> dict[str, float]:
    """Medians of a decoding step and a training step in this process."""
    import torch

    from turnwise.learn.tiny import TinySize, build_model, build_tokenizer

    torch.set_num_threads(threads)
    layers, hidden, heads = SIZES[size]
    tokenizer = build_tokenizer([f"word{number}" for number in range(WORDS)])
    model = build_model(len(tokenizer), TinySize(layers, hidden, heads, 2048), 0, tokenizer)
    ids = torch.randint(len(tokenizer), (1, 1024), generator=torch.Generator().manual_seed(0))

    def decode() -> None:
        with torch.no_grad():
            model(ids[:, :64].T, use_cache=False)

    def train() -> None:
        model(ids).logits.logsumexp(-1).mean().backward()

    found = {}
    for name, step in (("decode", decode), ("train", train)):
        times, until = [], time.perf_counter() + seconds
        step()
        while time.perf_counter() < until or len(times) < 3:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        found[name] = sorted(times)[len(times) // 2]
    return found | {"parameters": sum(weight.numel() for weight in model.parameters())}


def apart(size: str, threads: int, seconds: float, at_once: int = 1) -> dict[str, float]:
    """The same in separate processes, `at_once` of them; the mean."""
    command = [sys.executable, __file__, "--work", size, str(threads), "--seconds", str(seconds)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_"))}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(at_once)]
    found = [json.loads(process.communicate()[0]) for process in running]
    return {name: sum(one[name] for one in found) / at_once for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--work", nargs=2, metavar=("SIZE", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write threads.json beside this file")
    asked = parser.parse_args()
    wait_quietly()
    if asked.work:
        print(json.dumps(work(asked.work[0], int(asked.work[1]), asked.seconds)))
        return
    counts = [count for count in (1, 2, 4, 8, 16) if count <= cores()]
    rows: list[dict[str, Any]] = []
    for size in asked.sizes:
        one: dict[str, dict[str, float]] = {}
        for threads in counts:
            alone, beside = apart(size, threads, asked.seconds), apart(size, threads, asked.seconds, 2)
            one = one or {"alone": alone, "beside": beside}
            row: dict[str, Any] = {"size": size, "parameters": int(alone["parameters"]), "threads": threads}
            for name, found in (("alone", alone), ("beside", beside)):
                row |= {f"{what}_{name}": round(found[what] / one["alone"][what], 2) for what in ("decode", "train")}
            rows.append(row | {"decode_ms": round(1e3 * alone["decode"], 2), "train_ms": round(1e3 * alone["train"], 1)})
            print(json.dumps(row), file=sys.stderr)
    publish(
        {"machine": platform.machine(), "cores": cores(), "relative_to": "one thread, alone", "rows": rows},
        HERE / "threads.json" if asked.write else None,
    )


if __name__ == "__main__":
    main()
