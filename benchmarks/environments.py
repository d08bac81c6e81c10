"""How fast the environments are, what simple agents score in them, and what the pool and snapshots cost.

python benchmarks/environments.py panel [--seconds 3] [--only scores|speeds] [NAME …] --write
python benchmarks/environments.py pool --write
python benchmarks/environments.py snapshots [NAME …] --write
python benchmarks/environments.py shell --write
make bench-envs                                      all speeds, with the packages of `make test-envs`, then the tables
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import inspect
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from bench import Part, machine, main, read_results, write_section

from turnwise.collect.players import PLAYERS
from turnwise.data.tasks import Task
from turnwise.envs import Observation, Transition
from turnwise.envs.base import Restorable
from turnwise.envs.check import check
from turnwise.envs.pool import Pool
from turnwise.envs.registry import close, describe, make, spec, tasks, turn_limit
from turnwise.evaluation.players import evaluate_player
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.environment import step_limit
from turnwise.util.errors import TurnwiseError

# -- every environment --------------------------------------------------------------------------------------------------------------------

TASKS = 50
FEW, MANY, LARGE = 3, 60, 20.0  # further environments for the memory; few of those that take more than 20 MB
PATIENCE = 10.0  # seconds for making further environments, after the few
PICTURES = ("sokoban", "boxoban", "numberline", "ezpoints", "points24", "blackjack")
PANEL = 100  # tasks of the validation split
PANELS = {  # slow ones: fewer tasks than PANEL
    "minihack": 50, "miniwob": 50, "nethack": 10, "scienceworld": 10, "tau2": 50, "textworld": 20, "textworld-express": 50,
}  # fmt: skip
LONGEST = {"scores": 1800, "speeds": 240}  # seconds for one environment
What = Literal["scores", "speeds"]


def measure_one(label: str, seconds: float, part: What) -> dict[str, Any]:
    """The scores or the speeds of one environment, in this process."""
    name, _, pictures = label.partition(", ")
    options = {"observe": "image"} if pictures else {}
    if part == "speeds":
        found = memory(name, options)  # first: nothing of it is loaded yet
        when = {"date": datetime.date.today().isoformat(), "load": round(os.getloadavg()[0], 1)}
        return speed(name, seconds, options) | found | when
    return scores(name, PANELS.get(name, PANEL))


# -- scores -------------------------------------------------------------------------------------------------------------------------------


def scores(name: str, n: int) -> dict[str, Any]:
    """The players that need no model on a panel of the validation split, and what the checker found."""
    splits = describe(name)[0]["splits"] or {"valid": None}
    split = min(splits, key=lambda split: (not split.startswith("valid"), not split.startswith(("dev", "test")), split))
    found = tasks(name, split)
    panel = found.panel(min(n, len(found.distinct())), 0)
    return {
        "split": split,
        "tasks": len(panel),
        "panel_hash": panel.hash,
        "max_turns": step_limit(Config.load(None, {"env.name": name}).env),
        "contract": [problem.rule for problem in check(name).problems],
        "agents": {agent: score(name, agent, split, len(panel)) for agent in PLAYERS},
    }


def score(name: str, agent: str, split: str, n: int) -> dict[str, float] | None:
    """The means of a player; none where the environment has no such player. An expert that acts on what it has seen is a scripted one."""
    modest = agent == "scripted" and "expert_knows" in inspect.signature(spec(name).load()).parameters
    config = Config.load(None, {"env.name": name, **({"env.options.expert_knows": "seen"} if modest else {})})
    try:
        found = evaluate_player("expert" if modest else agent, config, split, n, 0, 1, Reporter())
    except TurnwiseError:
        return None
    return {"success": round(found.success.rate, 4), "reward": round(found.reward, 4), "turns": round(found.turns, 2)}


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


def panel_rows(_: str | None = None) -> list[str]:
    """The table of docs/measurements/2026-11-environments.md, one line per environment."""
    found = []
    for name, row in read_results("environments")["panel"]["environments"].items():
        if "agents" in row and "steps_per_second" in row:
            cells = [_score(row["agents"][agent]) for agent in PLAYERS]
            numbers = [_number(row[key]) for key in ("steps_per_second", "reset_ms", "megabytes")]
            found.append(f"| `{name}` | {row['tasks']} {row['split']} | {row['max_turns']} | {' | '.join(cells + numbers)} |")
    return found


def speed_rows(names: str) -> list[str]:
    """The tables of the pages of some environments, with images in addition."""
    found, environments = [], read_results("environments")["panel"]["environments"]
    for name in names.split():
        for label, shown in ((name, f"`{name}`"), (f"{name}, pictures", f"`{name}`, images")):
            row = environments[label]
            new = "–" if "pictures" in label else _number(row["first_reset_ms"])
            found.append(f"| {shown} | {_number(row['steps_per_second'])} | {_number(row['reset_ms'])} | {new} |")
    return found


def not_measured(_: str | None = None) -> list[str]:
    """The sentence about environments that could not run here."""
    environments = read_results("environments")["panel"]["environments"]
    left = [f"`{name}` ({', '.join(row['missing'])})" for name, row in environments.items() if "missing" in row]
    return [f"Not measured, with what is missing: {'; '.join(left)}."] if left else []


def snapshot_rows(_: str | None = None) -> list[str]:
    """The table of snapshots: bytes and microseconds."""
    found = []
    for name, row in read_results("environments")["snapshots"]["environments"].items():
        times = " | ".join(f"{row[f'{part}_microseconds']:,.0f}" for part in ("snapshot", "restore", "replay"))
        found.append(f"| `{name}` | {row['bytes']:,}, {row['most_bytes']:,} | {times} |")
    return found


def _score(score: dict[str, float] | None) -> str:
    return "–" if score is None else f"{100 * score['success']:.0f} %, {score['reward']:.2f}".replace("-", "−")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else "<0.1" if value < 0.1 else f"{value:.2g}"


# -- all of them --------------------------------------------------------------------------------------------------------------------------


def measured_apart(label: str, seconds: float, part: What) -> dict[str, Any]:
    """The figures of one environment from a fresh process; what went wrong otherwise. All that it started ends with it."""
    command = [sys.executable, __file__, "panel", "--one", label, "--seconds", str(seconds), "--only", part]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return dict(json.loads(process.communicate(timeout=LONGEST[part])[0]))
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"failed": f"{part}: {'no end within the limit' if isinstance(error, subprocess.TimeoutExpired) else 'see the error above'}"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure_all(names: list[str], seconds: float, parts: tuple[What, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
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


def panel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="only these environments")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of stepping for each")
    parser.add_argument("--only", choices=get_args(What), help="scores or speeds; both if left out")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def measure_panel(options: argparse.Namespace) -> dict[str, Any]:
    """Every environment that can run here: what simple agents score on a fixed panel, how fast it is, and how much memory it takes.

    Each environment is measured in a fresh process, one environment at a time. `scores` do not depend on what else the machine does;
    `speeds` do, and take about ten minutes for all environments:

    - `agents`: random, scripted and expert agents on tasks of the validation split, as in `turnwise eval`, and what the checker found;
    - `steps_per_second`: random actions (the expert's, if there are none) on tasks of the first split, observation included. `reset_ms`: a
      reset of a task that was played before, `first_reset_ms`: of one that was not. Both in CPU time, so that other work on the machine
      does not count; in wall-clock time where the environment works in other processes;
    - `megabytes`: growth of resident memory, child processes included, per further environment after the first; `first_megabytes`: of the
      first, with its imports and shared data.

    With `--write`, every row is written as soon as it is known. Environments that are missing here, fail or take too long keep their old
    figures; those that have none are listed with what they are missing. `date` and `load` say when the speeds were measured, and how many
    processes wanted to run then."""
    if options.one:
        spec(options.one.partition(", ")[0])
        return measure_one(options.one, options.seconds, options.only)
    parts: tuple[What, ...] = (options.only,) if options.only else get_args(What)
    result = read_results("environments").get("panel", {"environments": {}})
    for label, found in measure_all(options.names, options.seconds, parts):
        if options.write:  # another process may have written other rows in the meantime
            result = read_results("environments").get("panel", result)
        rows = {**result["environments"], label: merged(result["environments"].get(label, {}), found)}
        result = {"machine": machine(), "environments": dict(sorted(rows.items()))}
        if options.write:
            write_section(__file__, "panel", result)
    return result


# -- the pool -----------------------------------------------------------------------------------------------------------------------------

SLOTS, ROUNDS, REPEATS = 64, 400, 5
ANSWER = Transition(Observation("You arrive at shelf 1. On the shelf 1, you see a mug 2.", actions=("look", "inventory")))


class Still:
    """Answers at once, always the same."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        return ANSWER.observation

    def step(self, action: str) -> Transition:
        return ANSWER


def seconds_of(play: Callable[[], None]) -> float:
    start = time.perf_counter()
    play()
    return time.perf_counter() - start


def bare() -> float:
    envs = [Still() for _ in range(SLOTS)]

    def play() -> None:
        for _ in range(ROUNDS):
            for env in envs:
                env.step("look")

    return seconds_of(play)


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
        return seconds_of(lambda: walk(pool, rounds)) * ROUNDS / rounds


def measure_pool(_: argparse.Namespace) -> dict[str, Any]:
    """What the pool adds to a step: the same walk through an environment that does nothing, bare and through the pool, in microseconds."""
    ways: dict[str, Callable[[], float]] = {
        "bare loop": bare,
        "pool, this process, step()": lambda: through(0, waiting, ROUNDS),
        "pool, this process, submit and results": lambda: through(0, streaming, ROUNDS),
        "pool, 1 worker, submit and results": lambda: through(1, streaming, ROUNDS // 10),
        "pool, 2 workers, submit and results": lambda: through(2, streaming, ROUNDS // 10),
        "pool, 1 worker, step()": lambda: through(1, waiting, ROUNDS // 10),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, measure in ways.items():
            times[way].append(measure() / (SLOTS * ROUNDS) * 1e6)
    medians = {way: round(statistics.median(values), 3) for way, values in times.items()}
    return {"microseconds_a_step": medians, "slots": SLOTS, "repeats": REPEATS, "machine": machine()}


# -- snapshots ----------------------------------------------------------------------------------------------------------------------------

STARTS = 20


def measure_snapshots_of(name: str, turns: int) -> dict[str, Any] | None:
    """One environment; None if it has no snapshots."""
    split = next(iter(describe(name)[0]["splits"]), "train")
    found = tasks(name, split)
    env, other = make(name), make(name)
    if not isinstance(env, Restorable):
        return None
    sizes: list[int] = []
    spent: dict[str, list[float]] = {"snapshot": [], "restore": [], "replay": []}
    try:
        for number in range(min(STARTS, len(found))):
            task, chance = found[number * len(found) // min(STARTS, len(found))], random.Random(number)
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
                actions.append(_action(env, observation, chance))
                transition = env.step(actions[-1])
                observation = transition.observation
                if transition.done:
                    break
    finally:
        close(env)
        close(other)
    times = {f"{part}_microseconds": round(1e6 * statistics.mean(seconds), 1) for part, seconds in spent.items()}
    return {"split": split, "states": len(sizes), "bytes": round(statistics.mean(sizes)), "most_bytes": max(sizes), **times}


def snapshot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="only these environments")
    parser.add_argument("--turns", type=int, default=30, help="turns of each attempt")


def measure_snapshots(options: argparse.Namespace) -> dict[str, Any]:
    """The cost of a snapshot, in bytes and microseconds, compared with playing the actions again.

    Each environment that has snapshots plays tasks of its first split with random actions for up to `--turns` turns; environments that are
    missing here, and those that are not named, keep their old figures. Before every turn a snapshot is taken and restored in a second
    instance. `replay` is what the same branch costs without snapshots: a reset and all actions up to that turn. All in CPU time of this
    process, so that other work on the machine does not count; houses and rooms are compiled and cached before."""
    names = [row["name"] for row in describe() if row["ready"] and (not options.names or row["name"] in options.names)]
    rows = {name: row for name in names if (row := measure_snapshots_of(name, options.turns)) is not None}
    before = read_results("environments").get("snapshots", {"environments": {}})["environments"]
    return {"machine": machine(), "turns": options.turns, "environments": dict(sorted({**before, **rows}.items()))}


# -- the shell ----------------------------------------------------------------------------------------------------------------------------

COMMANDS = {"builtin": "cd /work", "program": "ls"}


def shell_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attempts", type=int, default=60)
    parser.add_argument("--sandbox", default="bubblewrap")


def measure_shell(options: argparse.Namespace) -> dict[str, Any]:
    """What an attempt in the shell environment costs, in milliseconds: start, command, check. One attempt at a time; medians.

    `reset` starts an attempt at a task with files alone, `reset_git` one at a task with a repository, for the first and for the second
    time. `builtin` is a command that starts no program, `program` is `ls`; both with the observation and its anchor. `submit` ends the
    attempt and checks the files. `cpu` is the processor's time per attempt of five commands, of this process and of everything in the
    sandboxes."""
    env = make("shell", **({} if options.sandbox == "bubblewrap" else {"sandbox": options.sandbox}))
    starts = tasks("shell", "train", n=21 * options.attempts)
    plain = [task for task in starts if "git" not in task.id][: options.attempts]
    stored = [task for task in starts if "git" in task.id][: max(1, options.attempts // 10)]
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> None:
        start = time.perf_counter()
        call()
        spent.setdefault(name, []).append(time.perf_counter() - start)

    try:
        before = cpu()
        for task in plain:
            timed("reset", lambda task=task: env.reset(task))
            for name in ("builtin", "program", "builtin", "program", "builtin"):
                timed(name, lambda name=name: env.step(COMMANDS[name]))
            timed("submit", lambda: env.step("submit"))
        used = (cpu() - before) / len(plain)
        for name in ("reset_git_first", "reset_git"):
            for task in stored:
                timed(name, lambda task=task: env.reset(task))
    finally:
        close(env)
    medians = {name: round(1000 * statistics.median(values), 2) for name, values in spent.items()}
    return {"sandbox": options.sandbox, **medians, "cpu": round(1000 * used, 1)}


def cpu() -> float:
    """Seconds of processor time of this process and of those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


PARTS = {
    "panel": Part(measure_panel, panel_options),
    "pool": Part(measure_pool),
    "snapshots": Part(measure_snapshots, snapshot_options),
    "shell": Part(measure_shell, shell_options),
}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
