"""Runs that are really killed: `python benchmarks/kills.py [--kills 6] [--seed 0]`.

Every schedule is trained once to its end, then several times with SIGKILL (or SIGTERM, SIGINT) at one or two random moments, and resumed
each time. What is left must equal what the whole run left: the log without its times, the evaluations, the texts, bitwise identical
weights. Prints JSON; exit code 1 if anything differs. Run by hand, since it takes minutes: tests/test_exact_resume.py does a little of
it. Every run is a fork of this process, which has loaded torch and never used it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import turnwise as tw
from turnwise.runs.folder import Run

ROOT = Path(__file__).resolve().parent.parent
RECIPE = str(ROOT / "recipes" / "quickstart.toml")
SMALL = {
    "iterations": 4,
    "eval.n": 16,
    "collect.groups": 2,
    "collect.group_size": 4,
    "sft.tasks": 60,
    "sft.steps": 12,
    "model.tiny.hidden": 64,
    "run.checkpoint_every": 2,
    "eval.every": 2,
    "device": "cpu",
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "full context": {},
    "window": {"agent.context": "window"},
    "no evaluations": {"eval.every": 0, "run.checkpoint_every": 1},
    "every iteration": {"eval.every": 1, "run.checkpoint_every": 1},
    "two workers": {"env.workers": 2},
    "two workers, window": {"env.workers": 2, "agent.context": "window", "eval.every": 1},
}


def start(**arguments: Any) -> int:
    """A training in a fork of this process; its number."""
    child = os.fork()
    if child:
        return child
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        recipe = arguments.pop("recipe", None)
        tw.train(recipe, **arguments) if recipe else tw.train(**arguments)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def finish(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def left(folder: Path) -> dict[str, str]:
    """What a run leaves, as hashes by kind."""
    run = Run.open(folder)
    lines = [{k: v for k, v in line.items() if "time/" not in k and "seconds" not in k} for line in run.metrics()]
    evaluations = [path.read_bytes() for path in sorted((folder / "evals").glob("*"))]
    texts = [path.read_bytes() for path in sorted((folder / "rollouts").glob("*.jsonl.gz"))]
    parts = {"metrics": lines, "warnings": run.warnings(), "evals": evaluations, "rollouts": texts}
    found = {name: hashlib.sha256(repr(value).encode()).hexdigest()[:16] for name, value in parts.items()}
    litter = sorted(path.name for path in folder.rglob("*") if path.name.startswith(".") or path.name.endswith(".part"))
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]
    return found | {"weights": weights, "litter": " ".join(litter)}


def broken_off(settings: dict[str, Any], folder: Path, seconds: float, chance: random.Random) -> list[str]:
    """Start, end at a random moment, resume; once or twice. What was done to it."""
    told = []
    child = start(recipe=RECIPE, **settings)
    for _ in range(chance.choice([1, 2])):
        moment = chance.random() * seconds
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        time.sleep(moment)
        os.kill(child, number)
        finish(child)
        told.append(f"{signal.Signals(number).name} after {moment:.2f} s")
        if not (folder / "config.toml").is_file():
            child = start(recipe=RECIPE, **settings)
            continue
        child = start(resume=folder)
    if not finish(child):
        told.append("the last resume failed")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6, help="broken-off runs of each schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="schedules whose name contains this")
    asked = parser.parse_args()
    results, failed = [], 0
    with tempfile.TemporaryDirectory() as place:
        for name, changes in SCHEDULES.items():
            if asked.only not in name:
                continue
            settings = {**SMALL, **changes, "name": "run"}
            began = time.monotonic()
            assert finish(start(recipe=RECIPE, **settings, out=str(Path(place) / name / "whole")))
            seconds = time.monotonic() - began
            wanted = left(Path(place) / name / "whole" / "run")
            for number in range(asked.kills):
                chance = random.Random(f"{asked.seed} {name} {number}")
                folder = Path(place) / name / str(number) / "run"
                told = broken_off({**settings, "out": str(folder.parent)}, folder, seconds, chance)
                found = left(folder)
                differs = [part for part in wanted if found[part] != wanted[part]]
                failed += bool(differs)
                results.append({"schedule": name, "broken_off": told, "differs": differs})
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"runs": len(results), "unequal": failed, "results": results}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
