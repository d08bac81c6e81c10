"""Where the wall clock of a command goes: `python benchmarks/sampled.py OUT.json train RECIPE …` runs `turnwise train RECIPE …` and
looks at what the main thread is doing every few milliseconds.

It costs almost nothing, unlike a profiler that counts every call. What it sees is biased: the sampling thread runs when the main thread
releases Python's lock, so calls that do (launches, copies, waiting, files) are seen more often than plain Python.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from turnwise.cli.app import main as turnwise
from turnwise.util.files import write_text_atomically

EVERY = 0.004  # seconds
DEEPEST = 80
PHASES = {"collect": "system.py:collect", "update": "system.py:update", "eval": "system.py:evaluate"}


class Sampler(threading.Thread):
    """Counts the functions that are on the main thread's stack, and the one on top, by phase of the iteration."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.samples = 0

    def run(self) -> None:
        main = threading.main_thread().ident
        while True:
            time.sleep(EVERY)
            names = stack(sys._current_frames().get(main or 0))
            if any(name.endswith("train.py:run_iterations") for name in names):
                self.samples += 1
                phase = next((phase for phase, name in PHASES.items() if any(found.endswith(name) for found in names)), "other")
                self.own[f"{phase} {names[0]}"] += 1
                self.inside.update({f"{phase} {name}" for name in names})

    def result(self) -> dict[str, Any]:
        return {"samples": self.samples, "own": self.own.most_common(60), "inside": self.inside.most_common(160)}


def stack(frame: Any) -> list[str]:
    """`file:function` from the top down; files by their last two parts."""
    names: list[str] = []
    while frame is not None and len(names) < DEEPEST:
        names.append(f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_code.co_name}")
        frame = frame.f_back
    return names


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    out, sampler = Path(sys.argv[1]), Sampler()
    sys.argv = ["turnwise", *sys.argv[2:]]
    sampler.start()
    try:
        turnwise()
    finally:
        write_text_atomically(out, json.dumps(sampler.result(), indent=0) + "\n")


if __name__ == "__main__":
    main()
