"""How fast households are made, compiled, solved and played, by size, on one core.

    python benchmarks/generator.py [--write]

Times are CPU times of this process, so that other work on the machine does not count. Prints JSON: houses per second (as tasks, with
their hash), milliseconds to compile one and to plan it, the plan's length, and how many different houses there were.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.data.tasks import Task
from turnwise.envs.household.generated import HouseholdEnv
from turnwise.envs.household.generator import house
from turnwise.envs.household.knobs import SIZES


def made(env: HouseholdEnv, split: str, count: int) -> tuple[float, list[Task]]:
    start = time.process_time()
    found = list(env.tasks(split, count))
    for task in found:
        _ = task.hash
    return count / (time.process_time() - start), found


def measure(size: str, count: int) -> dict[str, Any]:
    env = HouseholdEnv(size)
    env.expert(env.tasks("train", 1)[0])  # compiles the rules, once per process
    train_rate, train = made(env, "train", count)
    valid_rate, valid = made(env, "valid", count // 5)
    sample = train[:200]
    start = time.process_time()
    for task in sample:
        house(task.data).world()
    compiled = time.process_time()
    plans = [env.expert(task) for task in sample]
    planned = time.process_time()
    compiling, planning = compiled - start, planned - compiled  # planning compiles too: its cache holds only the latest houses
    distinct = len({task.hash for task in train})
    return {
        "train_houses_a_second": round(train_rate),
        "valid_houses_a_second": round(valid_rate),
        "compile_ms": round(1000 * compiling / len(sample), 2),
        "compile_and_plan_ms": round(1000 * planning / len(sample), 2),
        "plan_length_mean": round(sum(map(len, plans)) / len(plans), 2),
        "plan_length_max": max(map(len, plans)),
        "train_houses": len(train),
        "distinct_train_houses": distinct,
        "shared_by_train_and_valid": len({task.hash for task in train} & {task.hash for task in valid}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="houses of the train split")
    parser.add_argument("--write", action="store_true", help="write benchmarks/generator.json")
    arguments = parser.parse_args()
    report: dict[str, Any] = {size: measure(size, arguments.count) for size in SIZES}
    report |= {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    publish(report, Path(__file__).with_suffix(".json") if arguments.write else None, indent=2)


if __name__ == "__main__":
    main()
