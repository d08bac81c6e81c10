"""Steps and resets per second of every environment that can run here: random actions, one process, one environment at a time.

    python benchmarks/environments.py [--seconds 3] [--write] [NAME …]

Prints JSON. Each environment plays tasks of its first split with random admissible actions up to its own limit of turns. A step is
measured with its observation, a reset with tasks that are played for the first time (`first reset`, which includes making or reading the
task) and with the same ones again. All in CPU time, so that other work on the machine does not count; choosing a random action counts as
part of a step. Environments with pictures are also measured with them. With `--write` environments that are missing here keep their old
figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.envs.registry import close, describe, make, tasks, turn_limit

RESULT = Path(__file__).with_suffix(".json")
TASKS = 50


def measure(name: str, seconds: float, **options: Any) -> dict[str, Any]:
    """One environment: its tasks once for the resets, then again and again with random actions."""
    split = next(iter(describe(name)[0]["splits"]), "train")
    found = tasks(name, split, **options)
    env = make(name, **options)
    limit = turn_limit(name, env) or 50
    try:
        numbers = [place * len(found) // min(TASKS, len(found)) for place in range(min(TASKS, len(found)))]
        start = time.process_time()
        panel = []
        for number in numbers:
            panel.append(found[number])
            env.reset(panel[-1], 0)
        first = (time.process_time() - start) / len(panel)
        start = time.process_time()
        for task in panel:
            env.reset(task, 0)
        again = (time.process_time() - start) / len(panel)
        steps, spent = _play(env, panel, limit, seconds)
    finally:
        close(env)
    return {
        "split": split,
        "steps_per_second": round(steps / spent),
        "step_microseconds": round(1e6 * spent / steps, 1),
        "first_resets_per_second": round(1 / first, 1) if first else None,
        "resets_per_second": round(1 / again) if again else None,
        "steps": steps,
    }


def _play(env: Any, panel: list[Any], limit: int, seconds: float) -> tuple[int, float]:
    """How many steps were made, and how many seconds of CPU they took."""
    chance, steps, spent, place = random.Random(0), 0, 0.0, 0
    while spent < seconds or place < len(panel):
        observation = env.reset(panel[place % len(panel)], place)
        place += 1
        start = time.process_time()
        for _ in range(limit):
            transition = env.step(chance.choice(observation.actions or ("look",)))
            steps += 1
            observation = transition.observation
            if transition.done:
                break
        spent += time.process_time() - start
    return steps, spent


def variants(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The environment as it is by default, and with pictures if it has them."""
    pictures = [(f"{name}, pictures", {"observe": "image"})] if name in PICTURES else []
    return [(name, {}), *pictures]


PICTURES = ("sokoban", "boxoban", "numberline", "ezpoints", "points24", "blackjack")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these environments")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of stepping for each")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    rows = [row for row in describe() if row["ready"] and (not args.names or row["name"] in args.names)]
    found = {}
    for row in rows:
        for label, options in variants(row["name"]):
            found[label] = measure(row["name"], args.seconds, **options)
    before = json.loads(RESULT.read_text())["environments"] if RESULT.is_file() else {}
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "environments": dict(sorted({**before, **found}.items())) if args.write else found,
    }
    publish(result, RESULT if args.write else None, indent=2)


if __name__ == "__main__":
    main()
