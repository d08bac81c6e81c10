"""What the browser costs: the time of start, reset and step, and the memory of the browser and of each further page.

    python benchmarks/browser.py [--write]

Prints JSON; `--write` keeps it in benchmarks/browser.json. Memory is the proportional share (PSS) of the browser's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from results import publish

from turnwise.data.tasks import Task
from turnwise_envs.miniwob.env import MiniWobEnv
from turnwise_envs.miniwob.experts import known

RESULT = Path(__file__).with_suffix(".json")
PAGES, FIRST, AGAIN = 8, 200, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.name}")
    given = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    publish({"machine": machine} | measure(), RESULT if given.write else None, 2)


def measure() -> dict[str, Any]:
    """Everything, with one browser."""
    env = MiniWobEnv()
    started = time.perf_counter()
    env.reset(task("click-test"))
    result: dict[str, Any] = {"first_reset_ms": ms(started), "browser_mb": memory()}
    for name, painted in (("tab_mb", False), ("window_mb", True)):
        before = memory()
        more = [MiniWobEnv(screenshots=painted) for _ in range(PAGES)]
        for one in more:
            one.reset(task("click-tab"))
        result[name] = round((memory() - before) / PAGES, 1)
        for one in more:
            one.close()
    photographed = MiniWobEnv(screenshots=True)
    result |= times(env, "") | times(photographed, "_with_screenshots")
    photographed.close()
    for number in range(FIRST):  # the browser's own caches fill
        env.reset(task("click-tab", number))
    before = memory()
    for number in range(AGAIN):
        env.reset(task("click-tab", FIRST + number))
    result["growth_mb_per_100_resets"] = round((memory() - before) * 100 / AGAIN, 1)
    env.close()
    return result


def times(env: MiniWobEnv, name: str) -> dict[str, float]:
    """One attempt of the expert at every kind: the median time, and the mean processor time, which other work affects less."""
    spent: dict[str, list[tuple[float, float]]] = {"reset": [], "step": []}
    for kind in sorted(known()):
        begun, used = time.perf_counter(), processor()
        env.reset(task(kind))
        spent["reset"].append((ms(begun), processor() - used))
        for _ in range(5):
            action = env.expert_action() or "wait"
            begun, used = time.perf_counter(), processor()
            done = env.step(action).done
            spent["step"].append((ms(begun), processor() - used))
            if done:
                break
    found: dict[str, float] = {}
    for what, values in spent.items():
        found[f"{what}_ms{name}"] = round(statistics.median(wall for wall, _ in values), 1)
        found[f"{what}_processor_ms{name}"] = round(statistics.mean(used for _, used in values), 1)
    return found


def processor() -> float:
    """Milliseconds of processor time of this process and of all below it, so far."""
    ticks = 0
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks * 1000 / os.sysconf("SC_CLK_TCK") + time.process_time() * 1000


def task(kind: str, seed: int = 0) -> Task:
    return Task(f"{kind}-{seed}", "train", {"kind": kind, "seed": seed})


def ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 1)


def memory() -> float:
    """Megabytes of all processes below this one."""
    total = 0
    for pid in below(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 1)


def below(pid: int) -> list[int]:
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [further for child in own for further in below(child)]


if __name__ == "__main__":
    main()
