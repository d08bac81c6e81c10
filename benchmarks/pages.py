"""How fast the pages of a large run are: a made run of 200,000 turns, asked as a browser asks.

    python benchmarks/pages.py [--write] [--turns 200000] [--chromium /usr/bin/chromium]

Prints JSON. The run is made twice: as 25 iterations of 8,000 turns, and with all its turns in one single iteration, the worst case. Every
answer is asked for over HTTP on a server that has just started (`first`) and again (`again`, the median of five). If a Chromium is found,
the time from opening an address to the drawn page is measured in it, and that of an empty page. Times are wall time in milliseconds;
`first_cpu` is the processor time of server and client, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from results import publish

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.pages.report import write_report
from turnwise.pages.run_list import RunList
from turnwise.pages.server import SCRIPT, STYLE, Server
from turnwise.runs.folder import Run

RESULT = Path(__file__).with_suffix(".json")
WORDS = [f"{a}{b}" for a in ("shelf", "cabinet", "drawer", "table", "lamp", "mug", "door", "soap", "towel") for b in ("", " 1", " 2", "s")]
LENGTH, MEMBERS, TOKENS = 50, 10, 60
CONFIG = 'name = "large"\nseed = 0\niterations = {iterations}\n[env]\nname = "household"\n[credit]\nname = "gigpo"\n'


def attempts(iteration: int, turns: int) -> Iterator[Trajectory]:
    """Attempts of 50 turns, ten at each task, over 40 states per task; texts of about 600 characters per turn."""
    chance = random.Random(iteration)
    sentences = [" ".join(chance.choices(WORDS, k=14)) for _ in range(2000)]
    for number in range(turns // LENGTH):
        group, won = number // MEMBERS, chance.random() < 0.4
        made = []
        for t in range(LENGTH):
            text = ", ".join(chance.choices(sentences, k=4))
            thought = ", ".join(chance.choices(sentences, k=2))
            action = f"go to {chance.choice(WORDS)}"
            made.append(
                Turn(
                    anchor=f"state {min(t, chance.randrange(40))} of {group}",
                    reward=float(won and t == LENGTH - 1),
                    observation=f"You see {text}.",
                    thought=thought,
                    action=action,
                    response=f"<think>{thought}</think><action>{action}</action>",
                    response_ids=range(TOKENS),
                    logprobs=[-0.5] * TOKENS,
                )
            )
        stop = Stop.DONE if won else Stop.STEP_LIMIT
        yield Trajectory(group, number, f"find-{group:05d}", made, stop, "", won)


def make_run(folder: Path, name: str, iterations: int, turns: int) -> Run:
    run = Run.create(folder, name, CONFIG.format(iterations=iterations))
    chance = random.Random(0)
    for iteration in range(iterations + 1):
        metrics = {f"learner/value_{k}": chance.random() for k in range(70)} | {"collect/success": chance.random(), "time/collect": 9.0}
        if iteration % 5 == 0:
            metrics |= {"eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6}
        run.log({"iteration": iteration} | metrics)
        if iteration:
            batch = list(attempts(iteration, turns))
            run.save_batch(iteration, Batch.of(batch), keep=None)
    return run


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def get(url: str) -> bytes:
    with urlopen(url) as answer:
        return bytes(answer.read())


def asked(folder: Path, name: str, last: int, members: int) -> dict[str, Any]:
    """First and repeated times of every kind of answer, on a fresh server."""
    server = Server(RunList(folder), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, place = server.url, f"run={name}&part=rollouts&iteration={last}"
    first = ["", f"static/{SCRIPT}", f"static/{STYLE}", "api/runs"]
    found: dict[str, Any] = {}
    for title, paths in {
        "first page (page, scripts, list of runs)": first,
        "overview (run, metrics)": [f"api/run?run={name}", f"api/metrics?run={name}"],
        "attempts of an iteration": [f"api/batch?{place}"],
        "one attempt": [f"api/attempt?{place}&id={members - 3}"],
        "its group": [f"api/group?{place}&group={(members - 3) // MEMBERS}"],
        "search, rare text": [f"api/search?{place}&text=absent+words"],
        "search, common text": [f"api/search?{place}&text=towel"],
    }.items():

        def ask(paths: list[str] = paths) -> None:
            for path in paths:
                get(url + path)

        used = time.process_time()
        first_time = timed(ask)
        used = 1000 * (time.process_time() - used)
        again = statistics.median(timed(ask) for _ in range(5))
        found[title] = {"first": round(first_time, 1), "first_cpu": round(used, 1), "again": round(again, 1)}
    server.shutdown()
    server.server_close()
    return found


def in_chromium(folder: Path, name: str, last: int, chromium: str) -> dict[str, float] | None:
    """From opening an address to the drawn page, on a fresh server and a fresh browser page; the median of three."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(chromium).exists():
        return None
    server = Server(RunList(folder), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    places = {
        "an empty page": ("static/style.css", "body"),
        "list of runs": ("#/", "table.runs tbody tr"),
        "overview": (f"#/run?run={name}", ".chart .curve"),
        "attempts": (f"#/attempts?run={name}&part=rollouts&iteration={last}", ".turn.current"),
    }
    found = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for title, (place, sign) in places.items():
            times = []
            for _ in range(3):
                page = browser.new_page(viewport={"width": 1280, "height": 720})

                def open_page(page: Any = page, place: str = place, sign: str = sign) -> None:
                    page.goto(server.url + place)
                    page.wait_for_selector(sign, state="attached")

                times.append(timed(open_page))
                page.close()
            found[title] = round(statistics.median(times), 1)
        browser.close()
    server.shutdown()
    server.server_close()
    return found


def measure(turns: int, iterations: int, chromium: str) -> dict[str, Any]:
    """One shape of run: `turns` turns in this many iterations. Runs in a separate process, so that its peak memory is not that of
    others."""
    with tempfile.TemporaryDirectory() as folder:
        each = turns // iterations
        subprocess.run([sys.executable, __file__, "--make", folder, str(iterations), str(each)], check=True)
        members = each // LENGTH
        texts = sum(path.stat().st_size for path in Path(folder).glob("large/rollouts/*.jsonl.gz"))
        result: dict[str, Any] = {"iterations": iterations, "turns": turns, "packed_texts_mb": round(texts / 1e6, 1)}
        result["http_ms"] = asked(Path(folder), "large", iterations, members)
        result["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        result["chromium_ms"] = in_chromium(Path(folder), "large", iterations, chromium)
        out = Path(folder) / "report.html"
        result["report_seconds"] = round(timed(lambda: write_report(Path(folder) / "large", out)) / 1000, 2)
        result["report_mb"] = round(out.stat().st_size / 1e6, 1)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the result beside this file")
    parser.add_argument("--turns", type=int, default=200_000)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--make", nargs=3, metavar=("FOLDER", "ITERATIONS", "TURNS"), help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make_run(Path(given.make[0]), "large", int(given.make[1]), int(given.make[2]))
        return
    if given.shape:
        print(json.dumps(measure(given.turns, given.shape, given.chromium)))
        return
    result: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    for title, iterations in (("many_iterations", 25), ("one_iteration", 1)):
        own = [sys.executable, __file__, "--shape", str(iterations), "--turns", str(given.turns), "--chromium", given.chromium]
        result[title] = json.loads(subprocess.run(own, check=True, stdout=subprocess.PIPE).stdout)
    publish(result, RESULT if given.write else None, indent=2)


if __name__ == "__main__":
    main()
