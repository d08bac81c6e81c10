"""A sweep: every combination of the listed values, each a separate run in a separate process.

A run's folder is made with its whole recipe in it, and then `turnwise train --resume` works in it, whether the run is new or was
interrupted: both take the same path, and editing the recipe during the sweep changes nothing. Starting the same sweep again skips what is
finished, resumes what was interrupted or failed, and refuses a folder that holds another recipe before anything is started.

Processes do not share the terminal's Ctrl-C: the sweep forwards it, once, and every run saves. While a process works in a run's folder it
holds the run's lock, which ends with it, so that two sweeps, or the orphans of a killed one, never train in the same folder at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnwise.config.trust import remember
from turnwise.evaluation.sweep_values import points, read_axes
from turnwise.recipe.reading import read_recipe
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml, toml_value
from turnwise.runs.folder import CONFIG, SUMMARY, read_facts
from turnwise.runs.metrics import METRICS
from turnwise.runs.tail import news
from turnwise.setup.early import check_trainable, look_at
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.interrupt import Interrupt
from turnwise.util.lock import LOCK, in_use, is_held
from turnwise.util.threads import CORES, cores, told

SWEEP, LOG = "sweep.json", "train.log"
POLL = 0.25
State = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass
class Job:
    """One run of the sweep and its status."""

    name: str
    folder: Path
    changes: dict[str, Any]
    config: Config
    state: State = "waiting"
    found: str = "new"  # what the folder held when the sweep began: new, cut off, finished
    iteration: int = 0
    success: float | None = None
    measured: int = 0  # after which iteration that was
    message: str = ""
    exit_code: int | None = None
    started: float = 0.0
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    after: int = 0  # what was read of its metrics: see runs/tail.py
    mark: int = 0
    first_line: tuple[float, int] | None = None  # when this process logged its first line, and of which iteration

    def look(self) -> None:
        """Its progress, from the new lines of its metrics."""
        before = self.iteration, self.success
        new = news(self.folder / METRICS, self.after, self.mark)
        self.after, self.mark = new.after, new.mark
        for line in new.lines:
            self.iteration = int(line.get("iteration", self.iteration))
            if "eval/success" in line:
                self.success, self.measured = line["eval/success"], self.iteration
        if self.state == "running" and self.first_line is None and before != (self.iteration, self.success):
            self.first_line = time.monotonic(), self.iteration

    @property
    def left(self) -> float | None:
        """The remaining seconds by the pace since its first line: the start and a warm start come once."""
        if self.state != "running" or self.first_line is None or self.iteration <= self.first_line[1]:
            return None
        start, first = self.first_line
        return (time.monotonic() - start) / (self.iteration - first) * (self.config.iterations - self.iteration)

    def to_dict(self) -> dict[str, Any]:
        plain = ("name", "state", "iteration", "success", "exit_code", "message")
        return {key: getattr(self, key) for key in plain} | {
            "iterations": self.config.iterations,
            "seed": self.config.seed,
            "changes": self.changes,
            "seconds": round(self.seconds, 1),
        }


class Watcher:
    """The sweep tells it what happens. This one shows nothing."""

    def begin(self, jobs: Sequence[Job]) -> None: ...

    def look(self, jobs: Sequence[Job]) -> None: ...

    def changed(self, job: Job) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


def plan(recipe: str | Path | None, arguments: Sequence[str], out: str | Path | None = None) -> tuple[Path, list[Job]]:
    """The sweep's folder and its runs. All recipes and all folders are checked before anything starts."""
    axes = read_axes(arguments)
    for key in ("name", "out"):
        if len(axes.get(key, [])) > 1:
            raise TurnwiseError(f"{key} names the runs' folder and cannot vary in a sweep; the sweep names the runs itself")
    jobs: list[Job] = []
    folder: Path | None = None
    own_name = read_recipe(Path(recipe)).get("name") if recipe is not None else None
    defaults = {"name": own_name or Config.model_fields["name"].default}  # it stays: the suffix says what varies
    for point in points(axes):
        config = Config.load(recipe, defaults | dict(point.changes)).trusted()
        check_trainable(config, runs=False)  # each run does so again, and makes what it names
        look_at(config)
        folder = folder or Path(out if out is not None else Path(config.out) / f"{config.name}-sweep")
        name = f"{config.name}-{point.suffix}" if point.suffix else config.name
        config = Config.model_validate(config.model_dump(mode="json") | {"name": name, "out": str(folder)})
        job = Job(name, folder / name, dict(point.changes), config)
        inspect(job)
        jobs.append(job)
    assert folder is not None
    return folder, jobs


def inspect(job: Job) -> None:
    """What the run's folder already holds; another recipe there is an error."""
    if not job.folder.exists() or not any(path.name != LOCK for path in job.folder.iterdir()):
        return
    if not (job.folder / CONFIG).is_file():
        raise TurnwiseError(f"{job.folder} exists and is not a run: move it away, or give the sweep another folder with --out")
    there = Config.load(job.folder / CONFIG)
    if content_hash(there) != content_hash(job.config) or there.seed != job.config.seed:
        raise TurnwiseError(
            f"{job.folder} holds a run of another recipe ({_difference(there, job.config)}). Nothing was started. Move that folder away, "
            "or give the sweep another one with --out"
        )
    job.look()
    summary = read_facts(job.folder, SUMMARY)
    job.found = "finished" if summary.get("finished") and summary.get("config_hash") == content_hash(job.config) else "cut off"
    if job.found == "finished":
        job.state = "finished"


def _difference(there: Config, asked: Config) -> str:
    """The first keys in which two recipes differ, as text."""
    from turnwise.runs.records import flatten

    one, two = (flatten(config.model_dump(mode="json", exclude={"name", "out"})) for config in (there, asked))
    keys = [key for key in sorted({*one, *two}) if one.get(key) != two.get(key)]
    words = [f"{key} is {toml_value(one.get(key))} there and {toml_value(two.get(key))} here" for key in keys[:3]]
    return "; ".join(words) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def cores_for(jobs: int, asked: int | None = None) -> int:
    """Cores of each process: the given number, otherwise all (or what OMP_NUM_THREADS allows) divided among the processes."""
    return asked or max(1, (told() or cores()) // jobs)


class Sweep:
    """Runs the jobs of a plan, `at_once` of them at a time."""

    def __init__(self, folder: Path, jobs: Sequence[Job], at_once: int = 1, threads: int | None = None, watcher: Watcher | None = None):
        self.folder, self.jobs, self.at_once, self.threads = folder, list(jobs), at_once, cores_for(at_once, threads)
        self.watcher = watcher or Watcher()
        self.asked = threads is not None
        self.head: dict[str, Any] = {"jobs": at_once, "threads": self.threads}

    def run(self) -> None:
        """Until every job is done, or Ctrl-C."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()
        with Interrupt(self.watcher.note) as interrupted:
            self.watcher.begin(self.jobs)
            try:
                self._work(interrupted)
            except BaseException:  # a second Ctrl-C, or a fault here: no process is left behind
                self._signal_all(signal.SIGKILL)
                raise
            finally:
                self.watcher.end()
                self.write()

    def _work(self, interrupted: Callable[[], bool]) -> None:
        told = False
        while True:
            running = [job for job in self.jobs if job.state == "running"]
            for job in running:
                job.look()
                if job.process is not None and job.process.poll() is not None:
                    self._close(job, interrupted())
            running = [job for job in self.jobs if job.state == "running"]
            waiting = [job for job in self.jobs if job.state == "waiting"]
            if interrupted():
                if not told:
                    self._signal_all(signal.SIGINT)
                    told = True
                if not running:
                    return
            elif not running and not waiting:
                return
            else:
                for job in waiting[: self.at_once - len(running)]:
                    self._start(job)
            self.watcher.look(self.jobs)
            time.sleep(POLL)

    def _start(self, job: Job) -> None:
        """One process in the run's folder, which takes the run's lock and holds it as long as it lives."""
        job.folder.mkdir(parents=True, exist_ok=True)
        if is_held(job.folder):
            job.state, job.message = "failed", in_use(job.folder)
            return self._changed(job)
        if not (job.folder / CONFIG).is_file():
            write_text_atomically(job.folder / CONFIG, to_toml(job.config))
        remember(job.folder, job.config.model_dump(mode="json"))  # the recipe, and the code that it names, is what was asked for here
        environment = os.environ | {CORES: str(self.threads)}
        if self.asked or told():
            environment["OMP_NUM_THREADS"] = str(self.threads)  # otherwise each run chooses among its cores by its model's size
        command = [sys.executable, "-m", "turnwise", "train", "--resume", str(job.folder)]
        with (job.folder / LOG).open("ab") as log:
            job.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        job.state, job.started, job.message = "running", time.monotonic(), ""
        return self._changed(job)

    def _close(self, job: Job, interrupted: bool) -> None:
        """A process has ended: its status by its exit code and its files."""
        assert job.process is not None
        job.exit_code, job.seconds = job.process.returncode, time.monotonic() - job.started
        job.look()
        if job.exit_code == 0 and read_facts(job.folder, SUMMARY).get("finished"):
            job.state = "finished"
        elif interrupted:
            job.state, job.message = "stopped", "saved; start the sweep again to continue"
        else:
            job.state, job.message = "failed", last_words(job.folder / LOG) or f"exit code {job.exit_code}"
        self._changed(job)

    def _changed(self, job: Job) -> None:
        self.watcher.changed(job)
        self.write()

    def _signal_all(self, number: int) -> None:
        for job in self.jobs:
            if job.state == "running" and job.process is not None and job.process.poll() is None:
                job.process.send_signal(number)

    def write(self) -> None:
        """sweep.json: the arguments and the status of each run. Runs of earlier sweeps in the same folder stay listed."""
        mine = {job.name: job.to_dict() for job in self.jobs}
        before = [entry for entry in read_facts(self.folder, SWEEP).get("runs", []) if entry.get("name") not in mine]
        text = json.dumps(self.head | {"runs": [*before, *mine.values()]}, indent=2, default=str)
        write_text_atomically(self.folder / SWEEP, text + "\n")

    @property
    def exit_code(self) -> int:
        """0: all finished; 1: some failed; 130: interrupted."""
        states = {job.state for job in self.jobs}
        return 130 if states & {"stopped", "waiting"} else 1 if "failed" in states else 0


def last_words(path: Path) -> str:
    """The last message of a process: the line that names its error, without the progress before it."""
    text = path.read_bytes()[-(1 << 14) :].decode("utf-8", "replace") if path.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""
