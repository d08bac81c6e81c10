"""The household simulator compared with TextWorld, on the same games and commands in one run; prints JSON, `--write` keeps it next to
this file.

    make test-oracle N=1 && .venv/bin/python benchmarks/household.py --write

TextWorld plays each game once, ours the same commands several times over; both are given per step, with the admissible commands.
`seconds` is wall-clock time, `cpu` the CPU time of the process, which other work on the machine disturbs less. Without the oracle's
virtual environment only our side is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

from play import PYTHON, Oracle  # noqa: E402
from results import publish  # noqa: E402

from turnwise.data.tasks import Task  # noqa: E402
from turnwise.envs.household.alfworld import AlfworldEnv, _worlds  # noqa: E402
from turnwise.envs.household.games import Library  # noqa: E402
from turnwise.envs.household.packed import PackedLibrary  # noqa: E402

DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")) / "alfworld"
STEPS, ROUNDS = 40, 25
Spent = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"index": measure_index()}
    env = AlfworldEnv(DATA)
    tasks = list(env.tasks("train").panel(options.games, options.seed))
    scripts = {task.id: commands_for(env, task, options.seed) for task in tasks}
    result["turnwise"] = ours = measure_ours(env, tasks, scripts)
    if PYTHON.exists():
        result["textworld"] = theirs = measure_textworld(env, tasks, scripts)
        result["times faster"] = {
            f"{what}, {clock}": round(theirs[what][clock] / ours[what][clock]) for what in ("step", "reset") for clock in ("seconds", "cpu")
        }
    result |= {"memory": measure_memory(tasks), "expert": measure_expert(env)}
    result |= {"games": options.games, "steps a game": STEPS, "seed": options.seed}
    result |= {"machine": f"{platform.machine()}, Python {platform.python_version()}, one core, others at work"}
    publish(result, Path(__file__).with_suffix(".json") if options.write else None, indent=2)


def commands_for(env: AlfworldEnv, task: Task, seed: int) -> list[str]:
    """A game's commands: kinds drawn evenly, one in ten senseless; it stops short of winning."""
    rng = random.Random(f"{seed}/{task.id}")
    actions = env.reset(task).actions or ()
    commands: list[str] = []
    while len(commands) < STEPS:
        verb = rng.choice(sorted({action.split()[0] for action in actions}))
        command = rng.choice([action for action in actions if action.split()[0] == verb]) if rng.random() < 0.9 else "dance"
        move = env.step(command)
        if move.done:
            return commands_for(env, task, seed + 1)
        commands.append(command)
        actions = move.observation.actions or ()
    return commands


def spend(action: Callable[[], Any]) -> Spent:
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}


def mean(spent: list[Spent], count: int) -> Spent:
    return {key: sum(one[key] for one in spent) / count for key in ("seconds", "cpu")}


def measure_ours(env: AlfworldEnv, tasks: list[Task], scripts: dict[str, list[str]]) -> dict[str, Any]:
    first, resets, steps = [], [], []
    _worlds.clear()
    for task in tasks:
        first.append(spend(lambda task=task: env.reset(task)))  # type: ignore[misc]
        for _ in range(ROUNDS):
            resets.append(spend(lambda task=task: env.reset(task)))  # type: ignore[misc]
            steps.append(spend(lambda task=task: [env.step(command) for command in scripts[task.id]]))  # type: ignore[misc]
    step = mean(steps, len(steps) * STEPS)
    return {
        "step": step,
        "reset": mean(resets, len(resets)),
        "first reset of a game": mean(first, len(first)),
        "steps a second": {key: round(1 / value) for key, value in step.items()},
    }


def measure_textworld(env: AlfworldEnv, tasks: list[Task], scripts: dict[str, list[str]]) -> dict[str, Any]:
    oracle, resets, steps = Oracle(), [], []
    for task in tasks:
        game = env.library.read(env.library.entry(task.id))
        content = {"pddl_problem": game.problem, "pddl_domain": game.domain, "grammar": game.grammar, "walkthrough": [], "solvable": True}
        with tempfile.NamedTemporaryFile("w", suffix=".tw-pddl") as file:
            json.dump(content, file)
            file.flush()
            oracle.load(Path(file.name))
            resets.append(oracle.reset())
            env.reset(task)
            for command in scripts[task.id]:
                answer = oracle.step(command)
                move = env.step(command)
                assert (answer["text"], answer["actions"]) == (move.observation.text, list(move.observation.actions or ()))
                steps.append(answer)
    oracle.close()
    return {"step": mean(steps, len(steps)), "reset": mean(resets, len(resets))}


def measure_index() -> dict[str, float]:
    """Opening the packed `train` split: from the xz file alone, and again with what that left in the cache folder."""
    spent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        kept, os.environ["TURNWISE_CACHE"] = os.environ.get("TURNWISE_CACHE"), cache
        for what in ("first", "again"):
            library: Library = PackedLibrary(DATA)
            opened = spend(lambda library=library: library.entries("train"))  # type: ignore[misc]
            spent |= {f"{what}, {clock}": value for clock, value in opened.items()}
        if kept is None:
            del os.environ["TURNWISE_CACHE"]
        else:
            os.environ["TURNWISE_CACHE"] = kept
        return {**spent, "games": len(library.entries("train"))}


def measure_memory(tasks: list[Task]) -> dict[str, float]:
    """Kilobytes of an environment with its current game: alone, and if another environment plays the same game."""
    AlfworldEnv(DATA).reset(tasks[0])
    sizes = []
    for task in tasks[1:]:
        _worlds.pop(str(task.data["game"]), None)
        gc.collect()
        tracemalloc.start()
        alone = _played(task)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        beside = _played(task)
        gc.collect()
        sizes.append((first / 1000, (tracemalloc.get_traced_memory()[0] - first) / 1000))
        tracemalloc.stop()
        del alone, beside
    return {"alone, kB": round(max(size[0] for size in sizes), 1), "beside another, kB": round(max(size[1] for size in sizes), 1)}


def _played(task: Task) -> AlfworldEnv:
    env = AlfworldEnv(DATA, anchor="state")
    env.reset(task)
    for command in env.expert(task)[:-1]:
        env.step(command)
    return env


def measure_expert(env: AlfworldEnv) -> dict[str, float]:
    times, lengths, stored = [], 0, 0
    for task in env.tasks("valid_seen"):
        env.reset(task)
        times.append(spend(env.expert_plan))
        lengths += len(env.expert_plan())
        stored += len(env.walkthrough(task))
    return {
        "milliseconds a plan, cpu": round(1000 * sum(one["cpu"] for one in times) / len(times), 3),
        "longest, cpu": round(1000 * max(one["cpu"] for one in times), 3),
        "commands, beside the walkthroughs'": round(lengths / stored, 4),
    }


if __name__ == "__main__":
    main()
