"""Every environment that can run here: what simple agents score on a fixed panel, how fast it is, and how much memory it takes.

    python benchmarks/environments.py [--seconds 3] [--write] [--only scores|speeds] [NAME …]
    python benchmarks/environments.py --pages            # put the committed results into the tables of docs/
    make bench-envs                                      # all speeds, with the packages of `make test-envs`, then the tables

Prints a line per environment, and JSON at the end. Each environment is measured in a fresh process, one environment at a time. `scores` do
not depend on what else the machine does; `speeds` do, and take about ten minutes for all environments:

- `agents`: random, scripted and expert agents on tasks of the validation split (`turnwise/envs/agents.py`), and what the checker found;
- `steps_per_second`: random actions (the expert's, if there are none) on tasks of the first split, observation included. `reset_ms`: a
  reset of a task that was played before, `first_reset_ms`: of one that was not. Both in CPU time, so that other work on the machine does
  not count; in wall-clock time where the environment works in other processes;
- `megabytes`: growth of resident memory, child processes included, per further environment after the first; `first_megabytes`: of
  the first, with its imports and shared data.

With `--write`, every row is written as soon as it is known. Environments that are missing here, fail or take too long keep their old
figures; those that have none are listed with what they are missing. `date` and `load` say when the speeds were measured, and how many
processes wanted to run then.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.envs.agents import AGENTS, PANEL, compare
from turnwise.envs.registry import close, describe, make, spec, tasks, turn_limit
from turnwise.util.files import write_text_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).with_suffix(".json")
TASKS = 50
FEW, MANY, LARGE = 3, 60, 20.0  # further environments for the memory; few of those that take more than 20 MB
PATIENCE = 10.0  # seconds for making further environments, after the few
PICTURES = ("sokoban", "boxoban", "numberline", "ezpoints", "points24", "blackjack")
PANELS = {  # slow ones: fewer tasks than PANEL
    "minihack": 50, "miniwob": 50, "nethack": 10, "scienceworld": 10, "tau2": 50, "textworld": 20, "textworld-express": 50,
}  # fmt: skip
LONGEST = {"scores": 1800, "speeds": 240}  # seconds for one environment
Part = Literal["scores", "speeds"]


def measure(label: str, seconds: float, part: Part) -> dict[str, Any]:
    """The scores or the speeds of one environment, in this process."""
    name, _, pictures = label.partition(", ")
    options = {"observe": "image"} if pictures else {}
    if part == "speeds":
        found = memory(name, options)  # first: nothing of it is loaded yet
        when = {"date": datetime.date.today().isoformat(), "load": round(os.getloadavg()[0], 1)}
        return speed(name, seconds, options) | found | when
    played = compare(name, PANELS.get(name, PANEL))
    return {key: played[key] for key in ("split", "tasks", "panel_hash", "max_turns", "contract", "agents")}


# -- speed --------------------------------------------------------------------------------------------------------------------------------


def speed(name: str, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """Its tasks once for the resets, then again and again with random actions."""
    found = tasks(name, next(iter(describe(name)[0]["splits"]), "train"), **options)
    env = make(name, **options)
    limit = turn_limit(name, env) or 50
    try:
        panel = [found[place * len(found) // min(TASKS, len(found))] for place in range(min(TASKS, len(found)))]
        env.step(_action(env, env.reset(panel[0], 0), random.Random(1)))  # what is loaded on first use is no part of a step
        clock = time.perf_counter if children(os.getpid()) else time.process_time
        panel, first = _resets(env, panel[1:] or panel, clock, seconds)
        again = _resets(env, panel, clock, seconds)[1]
        steps, spent = _play(env, panel, limit, seconds, clock)
    finally:
        close(env)
    return {
        "clock": "wall" if clock is time.perf_counter else "cpu",
        "steps_per_second": float(f"{steps / spent:.3g}"),
        "reset_ms": float(f"{1000 * again:.3g}"),
        "first_reset_ms": float(f"{1000 * first:.3g}"),
        "steps": steps,
    }


def _resets(env: Any, panel: list[Any], clock: Callable[[], float], seconds: float) -> tuple[list[Any], float]:
    """The tasks that were started within the time, and the mean seconds of a reset."""
    start, done = clock(), []
    for task in panel:
        env.reset(task, 0)
        done.append(task)
        if clock() - start > 2 * seconds:
            break
    return done, (clock() - start) / len(done)


def _play(env: Any, panel: list[Any], limit: int, seconds: float, clock: Callable[[], float]) -> tuple[int, float]:
    """How many steps were made, and how many seconds they took."""
    chance, steps, spent, place, began = random.Random(0), 0, 0.0, 0, time.monotonic()
    while spent < seconds and (place < len(panel) or time.monotonic() - began < 20 * seconds):
        observation = env.reset(panel[place % len(panel)], place)
        place += 1
        for _ in range(limit):
            action = _action(env, observation, chance)
            start = clock()
            transition = env.step(action)
            spent += clock() - start
            steps += 1
            observation = transition.observation
            if transition.done:
                break
    return steps, spent


def _action(env: Any, observation: Any, chance: random.Random) -> str:
    if observation.actions:
        return str(chance.choice(observation.actions))
    if callable(make_random := getattr(env, "random_action", None)):
        return str(make_random(chance.getrandbits(32)))
    for method in ("expert_action", "scripted_action"):
        if callable(advise := getattr(env, method, None)) and (advice := advise()) is not None:
            return str(advice)
    return "look"


# -- memory -------------------------------------------------------------------------------------------------------------------------------


def memory(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Megabytes of the first environment, and of each further one, all of them with a task started."""
    before, made = resident(os.getpid()), []
    try:
        found = tasks(name, next(iter(describe(name)[0]["splits"]), "train"), **options)

        def another() -> None:
            made.append(make(name, **options))
            made[-1].reset(found[0], len(made))

        another()
        first = resident(os.getpid())
        another()
        most = FEW if resident(os.getpid()) - first > LARGE else MANY
        began = time.monotonic()
        while len(made) <= most and (len(made) <= FEW or time.monotonic() - began < PATIENCE):
            another()
        last = resident(os.getpid())
    finally:
        for env in made:
            close(env)
    return {"megabytes": float(f"{max(last - first, 0.0) / (len(made) - 1):.2g}"), "first_megabytes": round(first - before, 1)}


def resident(process: int) -> float:
    """Megabytes of a process and everything that it started."""
    total = 0.0
    for one in (process, *children(process)):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return total


def children(process: int) -> list[int]:
    """The processes that a process started, and theirs."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents.setdefault(int((place / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(place.name))
    found, left = [], [process]
    while left:
        new = parents.get(left.pop(), [])
        found += new
        left += new
    return found


# -- tables -------------------------------------------------------------------------------------------------------------------------------

HEAD = "| environment | panel | turns | random | scripted | expert | steps/s | reset, ms | MB |"
SPEED_HEAD = "| environment | steps/s | reset of a seen task, ms | of a new task, ms |"
PAGES = {"docs/cards.md": ("numberline", "ezpoints", "points24", "blackjack"), "docs/sokoban.md": ("sokoban", "boxoban")}


def lines(result: dict[str, Any]) -> list[str]:
    """The table of docs/environments.md, one line per environment."""
    found = []
    for name, row in result["environments"].items():
        if "agents" in row and "steps_per_second" in row:
            cells = [_score(row["agents"][agent]) for agent in AGENTS]
            numbers = [_number(row[key]) for key in ("steps_per_second", "reset_ms", "megabytes")]
            found.append(f"| `{name}` | {row['tasks']} {row['split']} | {row['max_turns']} | {' | '.join(cells + numbers)} |")
    return found


def speed_lines(result: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """The tables of the pages of some environments, with images in addition."""
    found = []
    for name in names:
        for label, shown in ((name, f"`{name}`"), (f"{name}, pictures", f"`{name}`, images")):
            row = result["environments"][label]
            new = "–" if "pictures" in label else _number(row["first_reset_ms"])
            found.append(f"| {shown} | {_number(row['steps_per_second'])} | {_number(row['reset_ms'])} | {new} |")
    return found


def not_measured(result: dict[str, Any]) -> str:
    """The sentence about environments that could not run here."""
    left = [f"`{name}` ({', '.join(row['missing'])})" for name, row in result["environments"].items() if "missing" in row]
    return f"Not measured, with what is missing: {'; '.join(left)}." if left else ""


def _score(score: dict[str, float] | None) -> str:
    return "–" if score is None else f"{100 * score['success']:.0f} %, {score['reward']:.2f}".replace("-", "−")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else "<0.1" if value < 0.1 else f"{value:.2g}"


def put_into_pages(result: dict[str, Any]) -> None:
    """Replace the rows of the tables, which are found by their headings, and the sentence about what is missing."""
    for page, head, rows in (
        ("docs/environments.md", HEAD, lines(result)),
        *((page, SPEED_HEAD, speed_lines(result, names)) for page, names in PAGES.items()),
    ):
        old = (ROOT / page).read_text().split("\n")
        start = old.index(head) + 2
        end = next(place for place in range(start, len(old)) if not old[place].startswith("|"))
        text = "\n".join([*old[:start], *rows, *old[end:]])
        write_text_atomically(ROOT / page, text)
    print(not_measured(result))


# -- all of them --------------------------------------------------------------------------------------------------------------------------


def measured_apart(label: str, seconds: float, part: Part) -> dict[str, Any]:
    """The figures of one environment from a fresh process; what went wrong otherwise. All that it started ends with it."""
    command = [sys.executable, __file__, "--one", label, "--seconds", str(seconds), "--only", part]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return dict(json.loads(process.communicate(timeout=LONGEST[part])[0].strip().splitlines()[-1]))
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"failed": f"{part}: {'no end within the limit' if isinstance(error, subprocess.TimeoutExpired) else 'see the error above'}"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure_all(names: list[str], seconds: float, parts: tuple[Part, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One environment after another, with a line about each."""
    rows = [row for row in describe() if not names or row["name"] in names]
    for number, row in enumerate(rows, 1):
        name, start = row["name"], time.monotonic()
        if not row["ready"]:
            yield name, {"missing": [need["what"] for need in row["needs"] if not need["present"]] or [row["error"]]}
            print(f"[{number}/{len(rows)}] {name}: missing", file=sys.stderr, flush=True)
            continue
        for label in (name, f"{name}, pictures") if name in PICTURES else (name,):
            found: dict[str, Any] = {}
            for part in parts:
                if part == "speeds" or label == name:
                    found |= measured_apart(label, seconds, part)
            yield label, found
            words = found.get("failed", f"{found.get('steps_per_second', '–')} steps per second")
            print(f"[{number}/{len(rows)}] {label}: {words}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A row with what was measured now; what was not, or failed, is kept."""
    if "missing" in new and "missing" not in old:
        return old or new
    if "failed" in new:
        new = {key: value for key, value in new.items() if key != "failed"} or ({} if old else {"missing": [new["failed"]]})
    return {**{key: value for key, value in old.items() if key != "missing" or not new}, **new}


def committed() -> dict[str, Any]:
    """The last results."""
    return dict(json.loads(RESULT.read_text())) if RESULT.is_file() else {"environments": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these environments")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of stepping for each")
    parser.add_argument("--only", choices=get_args(Part), help="scores or speeds; both if left out")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--pages", action="store_true", help="put the committed results into the tables of docs/")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pages:
        put_into_pages(committed())
        return
    if args.one:
        spec(args.one.partition(", ")[0])
        print(json.dumps(measure(args.one, args.seconds, args.only)))
        return
    parts: tuple[Part, ...] = (args.only,) if args.only else get_args(Part)
    machine, result = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", committed()
    for label, found in measure_all(args.names, args.seconds, parts):
        result = committed() if args.write else result  # another run may have written other rows in the meantime
        rows = {**result["environments"], label: merged(result["environments"].get(label, {}), found)}
        result = {"machine": machine, "environments": dict(sorted(rows.items()))}
        if args.write:
            write_text_atomically(RESULT, json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
