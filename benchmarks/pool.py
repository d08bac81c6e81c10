"""What the pool adds to a step: the same walk through an environment that does nothing, bare and through the pool, in one run.

    python benchmarks/pool.py [--write]

Prints JSON: microseconds per step for a bare loop, the pool in this process (waiting calls, and submit with results), and workers. Each
way is measured several times in turn; the median is reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from results import publish

from turnwise.data.tasks import Task
from turnwise.envs import Observation, Transition
from turnwise.envs.pool import Pool

SLOTS, ROUNDS, REPEATS = 64, 400, 5
ANSWER = Transition(Observation("You arrive at shelf 1. On the shelf 1, you see a mug 2.", actions=("look", "inventory")))


class Still:
    """Answers at once, always the same."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        return ANSWER.observation

    def step(self, action: str) -> Transition:
        return ANSWER


def seconds(play: Callable[[], None]) -> float:
    start = time.perf_counter()
    play()
    return time.perf_counter() - start


def bare() -> float:
    envs = [Still() for _ in range(SLOTS)]

    def play() -> None:
        for _ in range(ROUNDS):
            for env in envs:
                env.step("look")

    return seconds(play)


def waiting(pool: Pool, rounds: int) -> None:
    for _ in range(rounds):
        for slot in range(SLOTS):
            pool.step(slot, "look")


def streaming(pool: Pool, rounds: int) -> None:
    for slot in range(SLOTS):
        pool.submit_step(slot, "look")
    left = [rounds - 1] * SLOTS
    while pool.pending:
        for result in pool.results():
            if left[result.slot]:
                left[result.slot] -= 1
                pool.submit_step(result.slot, "look")


def through(workers: int, walk: Callable[[Pool, int], None], rounds: int) -> float:
    with Pool(Still, SLOTS, workers=workers) as pool:
        pool.reset_all([(slot, Task(str(slot)), 0) for slot in range(SLOTS)])
        return seconds(lambda: walk(pool, rounds)) * ROUNDS / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write benchmarks/pool.json")
    ways: dict[str, Callable[[], float]] = {
        "bare loop": bare,
        "pool, this process, step()": lambda: through(0, waiting, ROUNDS),
        "pool, this process, submit and results": lambda: through(0, streaming, ROUNDS),
        "pool, 1 worker, submit and results": lambda: through(1, streaming, ROUNDS // 10),
        "pool, 2 workers, submit and results": lambda: through(2, streaming, ROUNDS // 10),
        "pool, 1 worker, step()": lambda: through(1, waiting, ROUNDS // 10),
    }
    write = parser.parse_args().write
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, measure in ways.items():
            times[way].append(measure() / (SLOTS * ROUNDS) * 1e6)
    report = {
        "microseconds_a_step": {way: round(statistics.median(values), 3) for way, values in times.items()},
        "slots": SLOTS,
        "repeats": REPEATS,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    publish(report, Path(__file__).with_suffix(".json") if write else None, indent=2)


if __name__ == "__main__":
    main()
