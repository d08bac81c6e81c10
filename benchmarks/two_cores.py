"""What a second core brings a tiny model on a CPU: the quickstart with one thread and with two, in alternation.

    python benchmarks/two_cores.py --write                   # runs of 10 iterations
    python benchmarks/two_cores.py --iterations 50 --rounds 1

`one` is `threads = 1` in the recipe, `two` the default: a tiny model's operations have one thread each, and two threads compute
micro-batches and attention calls at the same time. Every number of both runs is the same, otherwise there is no result. The seconds of
each phase are those of the faster round, iteration by iteration, added up. `others` is how much of a core other processes took meanwhile,
by run: the result is good if that is about 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.util.threads import cores

HERE = Path(__file__).parent
PHASES = {
    "collect": "time/collect",
    "reference": "learner/seconds_reference",
    "update": "learner/seconds_update",
    "iteration": "time/iteration",
}
Rows = list[dict[str, Any]]


def busy() -> float:
    """Seconds that all cores together have worked since the machine started."""
    ticks = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(ticks[place] for place in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")


def run(iterations: int, more: list[str]) -> tuple[Rows, dict[str, float]]:
    """The metrics of a run, and what it took."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "TURNWISE_"))}
    with tempfile.TemporaryDirectory() as folder:
        given = [str(HERE.parent / "recipes" / "quickstart.toml"), f"out={folder}", f"iterations={iterations}", *more]
        before, began, used = busy(), time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "turnwise", "train", *given], env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        own = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        lines = (Path(folder) / "quickstart" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], {"seconds": round(seconds, 1), "others": round((busy() - before - own) / seconds, 2)}


def untimed(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if "seconds" not in name and not name.startswith("time/")} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write two_cores.json beside this file")
    asked = parser.parse_args()
    if cores() < 2 or not Path("/proc/stat").exists():
        sys.exit("This measurement needs Linux and two cores.")
    metrics: dict[str, list[Rows]] = {"one": [], "two": []}
    runs: dict[str, list[dict[str, float]]] = {"one": [], "two": []}
    for _ in range(asked.rounds):
        for name, more in (("one", ["threads=1"]), ("two", [])):
            rows, cost = run(asked.iterations, more)
            metrics[name].append(rows)
            runs[name].append(cost)
            print(name, cost, file=sys.stderr)
    if any(untimed(rows) != untimed(metrics["one"][0]) for own in metrics.values() for rows in own):
        sys.exit("The runs differ in more than their times.")
    seconds = {
        name: {
            phase: round(sum(min(row.get(key, 0.0) for row in same) for same in zip(*own, strict=True)), 2) for phase, key in PHASES.items()
        }
        for name, own in metrics.items()
    }
    ratios = {phase: round(seconds["two"][phase] / seconds["one"][phase], 2) for phase in PHASES}
    publish(
        {
            "machine": platform.machine(),
            "cores": cores(),
            "iterations": asked.iterations,
            "seconds": seconds,
            "two_to_one": ratios,
            "runs": runs,
        },
        HERE / "two_cores.json" if asked.write else None,
    )


if __name__ == "__main__":
    main()
