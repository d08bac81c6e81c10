"""The cost of a snapshot, in bytes and microseconds, compared with playing the actions again: every environment here that has snapshots.

    python benchmarks/snapshots.py [--turns 30] [--write] [NAME …]

Prints JSON. Each environment plays tasks of its first split with random actions for up to `--turns` turns; environments that are missing
here, and those that are not named, keep their old figures. Before every turn a snapshot is taken and restored in a second instance.
`replay` is what the same branch costs without snapshots: a reset and all actions up to that turn. All in CPU time of this process, so that
other work on the machine does not count; houses and rooms are compiled and cached before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from pathlib import Path
from statistics import mean
from typing import Any

from results import publish

from turnwise.envs.base import Observation, Restorable
from turnwise.envs.registry import close, describe, make, tasks

RESULT = Path(__file__).with_suffix(".json")
TASKS = 20


def measure(name: str, turns: int) -> dict[str, Any] | None:
    """One environment; None if it has no snapshots."""
    split = next(iter(describe(name)[0]["splits"]), "train")
    found = tasks(name, split)
    env, other = make(name), make(name)
    if not isinstance(env, Restorable):
        return None
    sizes: list[int] = []
    spent: dict[str, list[float]] = {"snapshot": [], "restore": [], "replay": []}
    try:
        for number in range(min(TASKS, len(found))):
            task, chance = found[number * len(found) // min(TASKS, len(found))], random.Random(number)
            observation, actions = env.reset(task, number), list[str]()
            for _ in range(turns):
                start = time.process_time()
                state = env.snapshot()
                kept = time.process_time()
                if state is None:
                    break
                other.restore(state)
                restored = time.process_time()
                other.reset(task, number)
                for action in actions:
                    other.step(action)
                replayed = time.process_time()
                sizes.append(len(state))
                for part, seconds in zip(spent, (kept - start, restored - kept, replayed - restored), strict=True):
                    spent[part].append(seconds)
                actions.append(_any(env, observation, chance))
                transition = env.step(actions[-1])
                observation = transition.observation
                if transition.done:
                    break
    finally:
        close(env)
        close(other)
    times = {f"{part}_microseconds": round(1e6 * mean(seconds), 1) for part, seconds in spent.items()}
    return {"split": split, "states": len(sizes), "bytes": round(mean(sizes)), "most_bytes": max(sizes), **times}


def _any(env: Any, observation: Observation, chance: random.Random) -> str:
    """A listed action, or one that the environment makes up."""
    if observation.actions:
        return chance.choice(observation.actions)
    return str(env.random_action(chance.getrandbits(32))) if callable(getattr(env, "random_action", None)) else "look"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these environments")
    parser.add_argument("--turns", type=int, default=30, help="turns of each attempt")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    names = [row["name"] for row in describe() if row["ready"] and (not args.names or row["name"] in args.names)]
    found = {name: measured for name in names if (measured := measure(name, args.turns)) is not None}
    before = json.loads(RESULT.read_text())["environments"] if RESULT.is_file() else {}
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "turns": args.turns,
        "environments": dict(sorted({**before, **found}.items())),
    }
    publish(result, RESULT if args.write else None, indent=2)


if __name__ == "__main__":
    main()
