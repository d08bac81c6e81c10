"""What an attempt in the shell environment costs: start, command, check. One process, one attempt at a time.

    python benchmarks/shell.py [--attempts 60] [--sandbox gvisor] [--write]

Prints JSON: milliseconds, median over attempts. `reset` starts an attempt at a task with files alone, `reset_git` one at a task with a
repository, for the first and for the second time. `builtin` is a command that starts no program, `program` is `ls`; both with the
observation and its anchor. `submit` ends the attempt and checks the files. `cpu` is the processor's time per attempt of five commands, of
this process and of everything in the sandboxes. With `--write` it goes into shell.json, under the name of the sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import publish

from turnwise_envs.shell.env import ShellEnv

RESULT = Path(__file__).with_suffix(".json")
COMMANDS = {"builtin": "cd /work", "program": "ls"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=60)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    env = ShellEnv(**({} if args.sandbox == "bubblewrap" else {"sandbox": args.sandbox}))
    try:
        found = measure(env, args.attempts)
    finally:
        env.close()
    before = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    publish({**before, args.sandbox: found} if args.write else found, RESULT if args.write else None, indent=2)


def measure(env: ShellEnv, attempts: int) -> dict[str, Any]:
    """All figures of one sandbox."""
    tasks = env.tasks("train", 21 * attempts)
    plain = [task for task in tasks if "git" not in task.id][:attempts]
    stored = [task for task in tasks if "git" in task.id][: max(1, attempts // 10)]
    spent: dict[str, list[float]] = {}
    used = cpu()
    for task in plain:
        timed(spent, "reset", lambda task=task: env.reset(task))
        for name in ("builtin", "program", "builtin", "program", "builtin"):
            timed(spent, name, lambda name=name: env.step(COMMANDS[name]))
        timed(spent, "submit", lambda: env.step("submit"))
    used = (cpu() - used) / len(plain)
    for name in ("reset_git_first", "reset_git"):
        for task in stored:
            timed(spent, name, lambda task=task: env.reset(task))
    return {name: round(1000 * statistics.median(values), 2) for name, values in spent.items()} | {"cpu": round(1000 * used, 1)}


def timed(spent: dict[str, list[float]], name: str, call: Callable[[], Any]) -> None:
    start = time.perf_counter()
    call()
    spent.setdefault(name, []).append(time.perf_counter() - start)


def cpu() -> float:
    """Seconds of processor time of this process and of those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


if __name__ == "__main__":
    main()
