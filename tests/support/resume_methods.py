"""Every method, killed by SIGKILL somewhere in a small run, and resumed: it must leave what an undisturbed run leaves.

    python tests/support/resume_methods.py                       # all methods: `make test-resume`
    python tests/support/resume_methods.py --only vineppo,slea --kills 3

A run is a process of its own, forked from this one. It kills itself at an event (an attempt that ended, a phase, a file that reached the
disk) whose number is derived from the method's name; each resumed run does so again, until `--kills` are done. The weights are compared by
their SHA-256, the log without times, and what is in the folder. Prints a line per method, and exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from small_runs import SMALLEST, Fuse  # noqa: E402

import turnwise as tw  # noqa: E402
from turnwise.methods.registry import methods  # noqa: E402
from turnwise.setup.catalogue import needs_of, settings_of  # noqa: E402

ITERATIONS = 3
SETTINGS = SMALLEST | {"device": "cpu", "iterations": ITERATIONS, "name": "run", "eval.n": 2, "run.checkpoint_every": 1}
MODEL = {"tiny": {"layers": 1, "hidden": 16, "heads": 2, "max_length": 1024}}
DRAWERS = {"env.name": f"{ROOT / 'examples' / 'methods' / 'gold_gain.py'}:Drawers", "env.options": {}, "env.max_turns": 4}
ANSWERS = {**DRAWERS, "method.key": "answer", "method.form": "{}", "sft.tasks": 16, "sft.steps": 6}
LIFT = ROOT / "tests" / "support" / "belief_env.py"
TAUGHT = {"sft.tasks": 12, "sft.steps": 60, "engine.max_tokens": 32, "model.tiny.hidden": 64, "env.max_turns": 4}
FURTHER: dict[str, dict[str, Any]] = {  # for methods that need more than the quickstart has
    "a2tgpo": ANSWERS,
    "igpo": ANSWERS,
    "mica": {"env.options": {}, "method.judge": f"{ROOT / 'tests' / 'support' / 'resume_methods.py'}:progress"},
    "rebel": {"env.name": f"{LIFT}:Lift", "env.options": {}, "method.tracker": f"{LIFT}:tracker", **TAUGHT},
}


def progress(task: Any, turns: Any) -> float:
    """A judge for a method that needs one: how much of an attempt is done."""
    return len(turns) / 10


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], Any], log: Path) -> int:
    """Do this in a copy of this process; returns how it ended, as `subprocess` does."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def settings(name: str) -> dict[str, Any]:
    """The quickstart, smaller, with the further models that the method needs and does not bring."""
    entry = methods[name]
    needs = {need.rstrip("?").partition(".")[2] for found in needs_of(entry).values() for need in found if need.startswith("model.")}
    brought = {key.split(".")[1] for key in settings_of(entry) if key.startswith("models.")} | {"policy", "reference"}
    own = {**SETTINGS, "method.name": name, **{f"models.{model}": MODEL for model in sorted(needs - brought)}, **FURTHER.get(name, {})}
    return {key: value for key, value in own.items() if key != "sft" or "sft.steps" not in own}


def perform(name: str, folder: Path, at: int | None) -> int:
    """One life of a run: it begins, or goes on."""
    run = folder / "run"

    def work() -> None:
        with Fuse(at, kill).watching() as fuse:
            if (run / "config.toml").is_file():
                tw.train(resume=run, reporter=fuse)
            else:
                recipe = "numberline-tiny.toml" if name in FURTHER else "quickstart.toml"
                tw.train(ROOT / "recipes" / recipe, out=str(folder), reporter=fuse, **settings(name))
        (folder / "events").write_text(str(fuse.count))

    folder.mkdir(parents=True, exist_ok=True)
    return in_child(work, folder / "output.txt")


def left(run: Path) -> dict[str, Any]:
    """What a run leaves, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    log = [{key: value for key, value in line.items() if "time/" not in key and "seconds" not in key} for line in lines]
    weights = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(run.rglob("*.safetensors"))}
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return {"weights": weights, "log": log, "files": files}


def tried(name: str, folder: Path, kills: int) -> dict[str, Any]:
    """A method's row of the table."""
    began = time.monotonic()
    row: dict[str, Any] = {"method": name, "killed_at": [], "good": False}
    if perform(name, folder / "whole", None) != 0:
        lines = (folder / "whole" / "output.txt").read_text().strip().splitlines()
        return row | {"problem": lines[-1] if lines else "it ended without a word"}
    events, chance = int((folder / "whole" / "events").read_text()), random.Random(name)
    done = 0  # events of the whole run that are behind, at least
    for _ in range(kills):
        at = chance.randrange(1, max(events - done, 2))
        code = perform(name, folder / "killed", at)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return row | {"problem": (folder / "killed" / "output.txt").read_text().strip().splitlines()[-1]}
        row["killed_at"].append(at)
        done += at // 2
    if not (folder / "killed" / "run" / "summary.json").is_file() and perform(name, folder / "killed", None) != 0:
        return row | {"problem": (folder / "killed" / "output.txt").read_text().strip().splitlines()[-1]}
    wanted, found = left(folder / "whole" / "run"), left(folder / "killed" / "run")
    differs = [part for part in wanted if wanted[part] != found[part]]
    if "files" in differs:
        row["files"] = sorted(set(wanted["files"]) ^ set(found["files"]))
    iterations = wanted["log"][-1].get("iteration")
    good = not differs and iterations == ITERATIONS and bool(row["killed_at"])
    return row | {"events": events, "differs": differs, "good": good, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of methods, with commas; default: all")
    parser.add_argument("--kills", type=int, default=2, help="how often each run is killed")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    given = parser.parse_args()
    names = [name for name in given.only.split(",") if name] or methods.names()
    rows = []
    with tempfile.TemporaryDirectory(prefix="turnwise-resume-") as folder:
        for name in names:
            rows.append(row := tried(name, Path(folder) / name, given.kills))
            killed = ", ".join(map(str, row["killed_at"])) or "-"
            result = row.get("problem") or ("the same" if row["good"] else f"differs: {', '.join(row['differs']) or 'not killed'}")
            print(
                f"{name:24} killed at {killed:12} of {row.get('events', '-'):>5} events  {row.get('seconds', '-'):>6} s  {result}",
                flush=True,
            )
            shutil.rmtree(Path(folder) / name, ignore_errors=True)
            if given.out is not None:
                given.out.write_text(json.dumps(rows, indent=1) + "\n")
    good = sum(row["good"] for row in rows)
    print(f"{good} of {len(rows)} methods end as an undisturbed run does; {sum(len(row['killed_at']) for row in rows)} kills")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
