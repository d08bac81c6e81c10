"""Kills by SIGKILL during whole runs: engines, processes of environments, learner ranks, nodes and the driver, at ten moments each.

    python tests/cluster/kills.py                          # all of it: `make test-cluster`
    python tests/cluster/kills.py --runs engines,workers --out FILE   # a part; FILE keeps what other parts have found
    python tests/cluster/kills.py --runs ranks --folder FOLDER        # with the undisturbed runs of another time

A Ray cluster on this machine, of several nodes where nodes are killed, trains the smallest agent. A moment is something that happens
(`moments.py`), not a second. Each run is struck at several moments, one after another; the driver is resumed after each death. In step, a
run must end with the weights of an undisturbed one, bit by bit. Always, every iteration is logged once, every attempt is in one batch at
most, and every group is learned from, or too old. Writes a line per run, and JSON with an entry per strike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nodes import PATIENT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATHS = (HERE / "inside", ROOT, ROOT / "tests" / "support", ROOT / "tests", os.environ.get("PYTHONPATH", ""))
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PATHS))
os.environ.setdefault("OMP_NUM_THREADS", "1")
LIMIT = 1200.0  # seconds for one life of a driver
PAUSE = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="", help="names of runs in moments.py, with commas; default: all")
    parser.add_argument("--out", type=Path, help="a file for the result")
    parser.add_argument("--folder", type=Path, help="where runs are kept; undisturbed ones that are there are used")
    given = parser.parse_args()
    if "TURNWISE_KILLS" not in os.environ:  # again, with what is inside every process from its start
        os.environ["TURNWISE_KILLS"] = str(given.folder.absolute()) if given.folder else tempfile.mkdtemp(prefix="turnwise-kills-")
        os.environ |= PATIENT | {"TURNWISE_STATE": f"{os.environ['TURNWISE_KILLS']}/state"}  # one for all lives of a driver
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from moments import RUNS

    folder = Path(os.environ["TURNWISE_KILLS"])
    names = [name for name in given.runs.split(",") if name] or [name for name, run in RUNS.items() if run.strikes]
    known = {name for name in RUNS if not RUNS[name].strikes and (folder / name / "summary.json").is_file()}
    wanted = [name for name in dict.fromkeys([RUNS[name].like for name in names] + names) if name and name not in known]
    found = json.loads(given.out.read_text())["strikes"] if given.out is not None and given.out.is_file() else []
    nodes = 3 if any(strike.kind == "node" for name in names for strike in RUNS[name].strikes) else 0
    with Harness(folder, nodes) as harness:
        for name in wanted:
            rows = harness.perform(name)
            found = [row for row in found if row["run"] != name] + rows
            if given.out is not None:
                given.out.write_text(json.dumps(_report(found), indent=1) + "\n")
    good = _report(found)["good"] == len(found)
    if good and given.folder is None:
        shutil.rmtree(folder)
    print(json.dumps({key: value for key, value in _report(found).items() if key != "strikes"}))
    return 0 if good else 1


def _report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = sorted({row["kind"] for row in rows})
    moments = {kind: len([1 for row in rows if row["kind"] == kind and row["staleness"] == 0]) for kind in kinds}
    return {"moments": moments, "kills": len(rows), "good": len([1 for row in rows if _good(row)]), "strikes": rows}


def _good(row: dict[str, Any]) -> bool:
    """Struck, and nothing was lost by it: no group fails, because no group is struck more often than `cluster.retries`."""
    ends = row["ended"] and row["errors"] == 0 and row["all_groups_ended"] and row["groups"]["failed"] == 0
    return bool(row["struck"] and ends and row["counted_twice"] == 0 and row["weights_equal"] is not False)


class Harness:
    """Runs on one cluster, in a folder. This process has loaded torch and Ray and never uses them: every driver is a fork of it."""

    def __init__(self, folder: Path, nodes: int):
        self.folder, self.count = folder, nodes

    def __enter__(self) -> Harness:
        command = [sys.executable, str(HERE / "nodes.py"), str(self.count)]
        with (self.folder / "nodes.log").open("w") as log:
            self.nodes = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=log)
        assert self.nodes.stdout is not None
        import ray  # noqa: F401

        import turnwise.setup.cluster  # noqa: F401

        line = self.nodes.stdout.readline()
        assert line.startswith("address "), f"the nodes did not start: {(self.folder / 'nodes.log').read_text()}"
        self.address = line.split()[1]
        return self

    def __exit__(self, *wrong: Any) -> None:
        assert self.nodes.stdin is not None
        self.nodes.stdin.close()
        try:
            self.nodes.wait(60)
        except subprocess.TimeoutExpired:
            self.nodes.kill()

    def perform(self, name: str) -> list[dict[str, Any]]:
        """A run from its start to its end: an entry per strike."""
        from moments import RUNS

        run, begun = RUNS[name], time.monotonic()
        for file in (*self.folder.glob("struck-*"), self.folder / "iteration", self.folder / "strikes.json"):
            file.unlink(missing_ok=True)
        lives = [[strike] for strike in run.strikes] + [[]] if run.driver else [list(run.strikes)]
        codes: list[int] = []
        struck: list[dict[str, Any] | None] = []
        for strikes in lives:
            (self.folder / "strikes.json").write_text(json.dumps([strike.described() for strike in strikes]))
            codes.append(self.live(name))
            marks = [self.folder / f"struck-{number}" for number in range(len(strikes))]
            struck += [json.loads(mark.read_text()) if mark.exists() else None for mark in marks]
            for mark in marks:
                mark.unlink(missing_ok=True)
        ended = {"ended": codes[-1] == 0, "errors": len([1 for code in codes if code > 0])}  # a driver that is killed has a negative one
        result = ended | {"seconds": round(time.monotonic() - begun, 1)} | self.judged(name)
        print(json.dumps({"run": name, "struck": [one is not None for one in struck]} | result), flush=True)
        shared = {"run": name, "staleness": run.settings.get("cluster.staleness", 0)}
        return [
            shared
            | {"kind": strike.kind, "moment": strike.words, "struck": one is not None, "after_iteration": (one or {}).get("iteration")}
            | result
            for strike, one in zip(run.strikes, struck, strict=True)
        ]

    def live(self, name: str) -> int:
        """A driver from its start to its end, or its death. Returns its exit code."""
        child = os.fork()
        if child == 0:
            self._train(name)
        begun, seen = time.monotonic(), set[Path]()
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            for mark in set(self.folder.glob("struck-*")) - seen:
                seen.add(mark)
                number = int(mark.name.partition("-")[2])
                strikes = json.loads((self.folder / "strikes.json").read_text())
                if strikes[number]["kind"] == "node":
                    assert self.nodes.stdin is not None
                    self.nodes.stdin.write("add\n")
                    self.nodes.stdin.flush()
            if time.monotonic() - begun > LIMIT:
                os.kill(child, signal.SIGKILL)
            time.sleep(PAUSE)

    def _train(self, name: str) -> None:
        """In a fork: the run, or what is left of it."""
        from cluster_runs import SMALL
        from moments import ITERATIONS, RUNS

        import turnwise as tw

        log = os.open(self.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        own = dict(RUNS[name].settings)
        more = {"env.workers": 1, "run.keep_rollouts": 99} | ({"cluster.address": self.address, "cluster.deadline": 400} if own else {})
        settings = (
            SMALL | more | {"env.name": f"{HERE / 'levers.py'}:Levers", "iterations": ITERATIONS, "name": name, "out": str(self.folder)}
        )
        try:
            if (self.folder / name / "config.toml").is_file():
                tw.train(resume=self.folder / name)
            else:
                tw.train(ROOT / "recipes" / "own-env.toml", **(settings | own))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)

    def judged(self, name: str) -> dict[str, Any]:
        """What became of the groups, and whether the weights are those of the undisturbed run."""
        from cluster_runs import SMALL, same
        from moments import ITERATIONS, RUNS
        from safetensors.torch import load_file

        from turnwise.runs.folder import Run

        if not (self.folder / name / "model" / "model.safetensors").is_file():
            return {
                "log": (self.folder / f"{name}.log").read_text()[-1500:],
                "groups": {},
                "counted_twice": None,
                "all_groups_ended": False,
                "weights_equal": False,
            }
        run = Run.open(self.folder / name)
        lines = run.metrics()
        attempts = [(one["id"], one["group"], one["stop"]) for line in lines[1:] for one in run.trajectories(line["iteration"])]
        failed = {group for _, group, stop in attempts if stop in ("env_fault", "engine_fault")}
        learned = {group for _, group, _ in attempts} - failed
        dropped = {kind: int(sum(line.get(f"cluster/{kind}_groups", 0) for line in lines)) for kind in ("stale", "failed")}
        twice = len(attempts) - len({number for number, _, _ in attempts}) + len(lines) - len({line["iteration"] for line in lines})
        ends = {"learned": len(learned), "too_old": dropped["stale"], "failed": len(failed) + dropped["failed"]}
        wanted = ITERATIONS * SMALL["collect.groups"]
        equal = None
        if RUNS[name].like and not RUNS[name].settings.get("cluster.staleness"):
            paths = [self.folder / one / "model" / "model.safetensors" for one in (name, RUNS[name].like)]
            equal = same(*map(load_file, paths))
        return {"groups": ends, "counted_twice": twice, "all_groups_ended": sum(ends.values()) == wanted, "weights_equal": equal}


if __name__ == "__main__":
    sys.exit(main())
