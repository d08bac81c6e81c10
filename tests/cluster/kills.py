"""Kills by SIGKILL during whole runs: an engine's process, an environment's process, a node, the driver, at ten moments each.

    python tests/cluster/kills.py                          # all of it: `make test-cluster`
    python tests/cluster/kills.py --kinds engine --moments 3

A cluster of a head and three nodes on this machine trains the smallest agent with two engines in step. Undisturbed, it gives the expected
weights. Every disturbed run must end, log each iteration once, and give the same weights. The driver is resumed after its death. Writes a
line per run, and JSON at the end.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
sys.path[:0] = [str(TESTS), str(ROOT)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")

from cluster_runs import SMALL, same  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

ITERATIONS = 8
LIMIT = 300.0  # seconds for one run
ENGINE = b"ray::Rollouter"
SMALL_STORE = {"object_store_memory": 80 * 2**20}


def processes() -> Iterator[tuple[int, bytes, int]]:
    """All processes: id, command line, parent."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(folder.name), (folder / "cmdline").read_bytes(), parent
            except (OSError, ValueError, IndexError):
                continue


def engines(below: set[int]) -> list[int]:
    """The engines that were started by these nodes."""
    return sorted(number for number, command, parent in processes() if command.startswith(ENGINE) and parent in below)


def workers(below: set[int]) -> list[int]:
    """The processes of environments below the engines."""
    known = set(engines(below))
    return sorted(number for number, _, parent in processes() if parent in known)


class Runs:
    """Runs on one cluster, in a folder."""

    def __init__(self, folder: Path):
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL_STORE})
        self.nodes = [self.cluster.add_node(num_cpus=1, **SMALL_STORE) for _ in range(3)]

    @property
    def raylets(self) -> set[int]:
        """Those of this cluster alone: others may run on the machine."""
        own = f"gcs-address={self.cluster.address}".encode()
        return {number for number, command, _ in processes() if b"raylet/raylet" in command and own in command}

    def start(self, name: str, resume: bool = False) -> subprocess.Popen[bytes]:
        more = {"cluster.engines": 2, "cluster.address": self.cluster.address, "cluster.deadline": 120, "env.workers": 1}
        settings = SMALL | more | {"iterations": ITERATIONS, "out": str(self.folder), "name": name}
        words = [f"{key}={'none' if value is None else value}" for key, value in settings.items()]
        command = ["--resume", str(self.folder / name)] if resume else [str(ROOT / "recipes" / "own-env.toml"), *words]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "turnwise", "train", *command], stdout=log, stderr=log, cwd=ROOT)

    def undisturbed(self) -> tuple[float, float]:
        """When the engines were there, and when the run ended, in seconds after its start."""
        begun, there = time.monotonic(), 0.0
        process = self.start("undisturbed")
        while process.poll() is None:
            there = there or (time.monotonic() - begun if len(engines(self.raylets)) == 2 else 0.0)
            time.sleep(0.05)
        assert process.returncode == 0, (self.folder / "undisturbed.log").read_text()
        return there, time.monotonic() - begun

    def disturbed(self, kind: str, number: int, lines: int) -> dict[str, Any]:
        """A run that is struck in the iteration after this many lines of its log, a little later from one moment to the next."""
        name, begun = f"{kind}{number}", time.monotonic()
        process = self.start(name)
        ready = engines if kind != "worker" else workers
        while process.poll() is None and (len(ready(self.raylets)) < 2 or self.logged(name) < lines):
            time.sleep(0.01)
        time.sleep(0.05 * (number % 5))
        struck = process.poll() is None and self.strike(kind, process)
        try:
            code = process.wait(LIMIT)
            if kind == "driver" and struck:
                code = self.start(name, resume=(self.folder / name).is_dir()).wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -1
        return {"kind": kind, "moment": number, "struck": struck, "code": code, "seconds": time.monotonic() - begun} | self.compare(name)

    def logged(self, name: str) -> int:
        """Lines in the log of a run."""
        path = self.folder / name / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.is_file() else 0

    def strike(self, kind: str, process: subprocess.Popen[bytes]) -> bool:
        if kind == "driver":
            process.kill()
            process.wait(LIMIT)
            return True
        if kind == "node":
            self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
            self.nodes.append(self.cluster.add_node(num_cpus=1, **SMALL_STORE))
            return True
        found = (engines if kind == "engine" else workers)(self.raylets)
        if found:
            os.kill(found[0], signal.SIGKILL)
        return bool(found)

    def compare(self, name: str) -> dict[str, Any]:
        """Whether the run is what the undisturbed one is."""
        path = Path("model") / "model.safetensors"
        if not (self.folder / name / path).is_file():
            return {"same_weights": False, "log": (self.folder / f"{name}.log").read_text()[-2000:]}
        logs = [(self.folder / run / "metrics.jsonl").read_text().splitlines() for run in (name, "undisturbed")]
        counted = [[(line["iteration"], line.get("collect/trajectories")) for line in map(json.loads, lines)] for lines in logs]
        weights = [load_file(self.folder / run / path) for run in (name, "undisturbed")]
        return {"same_weights": same(*weights), "counted_once": counted[0] == counted[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="engine,worker,node,driver")
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a file for the result")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="turnwise-kills-"))
    runs = Runs(folder)
    try:
        there, end = runs.undisturbed()
        print(f"undisturbed: engines after {there:.1f} s, end after {end:.1f} s", flush=True)
        found = []
        for kind in given.kinds.split(","):
            for number in range(given.moments):
                found.append(runs.disturbed(kind, number, number * ITERATIONS // given.moments))
                print(json.dumps(found[-1]), flush=True)
    finally:
        runs.cluster.shutdown()
    good = [one for one in found if one["code"] == 0 and one["same_weights"] and one.get("counted_once")]
    report = {
        "runs": len(found),
        "good": len(good),
        "struck": sum(one["struck"] for one in found),
        "undisturbed_seconds": end,
        "each": found,
    }
    text = json.dumps(report, indent=2)
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)
    if len(good) == len(found):
        shutil.rmtree(folder)
    sys.exit(len(good) != len(found))


if __name__ == "__main__":
    main()
