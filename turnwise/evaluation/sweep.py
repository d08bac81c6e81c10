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
from typing import Any, Literal, Protocol

from turnwise.config.trust import remember
from turnwise.evaluation.sweep_values import points, read_axes
from turnwise.recipe.reading import read_recipe
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml, toml_value
from turnwise.runs.folder import CONFIG, SUMMARY, read_facts
from turnwise.runs.metrics import METRICS
from turnwise.runs.tail import news
from turnwise.setup.early import check_trainable, look_at
from turnwise.setup.resume import differences
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.interrupt import Interrupt
from turnwise.util.lock import LOCK, in_use, is_held
from turnwise.util.threads import CORES, cores, told

SWEEP, LOG = "sweep.json", "train.log"
POLL = 0.25
State = Literal["waiting", "running", "finished", "failed", "stopped"]


class Process(Protocol):
    """The part of `subprocess.Popen` that a sweep uses."""

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


Start = Callable[[Sequence[str], Path, dict[str, str]], Process]
"""Starts `turnwise WORDS…` in a session of its own, with its output in a file, and these variables."""


def spawned(words: Sequence[str], log: Path, variables: dict[str, str]) -> Process:
    """A new process."""
    command = [sys.executable, "-m", "turnwise", *words]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=variables, start_new_session=True)


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
    success: float | None = None  # of the last evaluation
    message: str = ""
    exit_code: int | None = None
    started: float = 0.0
    seconds: float = 0.0
    process: Process | None = field(default=None, repr=False)
    after: int = 0  # what was read of its metrics: see runs/tail.py
    mark: int = 0

    def look(self) -> bool:
        """Read the new lines of its metrics; whether they tell of an evaluation."""
        new = news(self.folder / METRICS, self.after, self.mark)
        self.after, self.mark = new.after, new.mark
        for line in new.lines:
            self.iteration = int(line.get("iteration", self.iteration))
            self.success = line.get("eval/success", self.success)
        return any("eval/success" in line for line in new.lines)

    def to_dict(self) -> dict[str, Any]:
        plain = ("name", "state", "iteration", "success", "exit_code", "message")
        return {key: getattr(self, key) for key in plain} | {
            "iterations": self.config.iterations,
            "seed": self.config.seed,
            "changes": self.changes,
            "seconds": round(self.seconds, 1),
        }


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
    differ = {key: values for key, values in differences(there, asked).items() if key not in ("name", "out")}
    words = [f"{key} is {toml_value(one)} there and {toml_value(two)} here" for key, (one, two) in list(differ.items())[:3]]
    return "; ".join(words) + (f"; and {len(differ) - 3} more" if len(differ) > 3 else "")


class Sweep:
    """Runs the jobs of a plan, `at_once` of them at a time. `tell` is called with a job whenever its state changes or it was evaluated;
    `say` takes notices, `start` starts a process. `threads` are those of each: all cores (or what OMP_NUM_THREADS allows) divided among
    them if None."""

    def __init__(
        self,
        folder: Path,
        jobs: Sequence[Job],
        at_once: int = 1,
        threads: int | None = None,
        tell: Callable[[Job], None] = lambda job: None,
        say: Callable[[str], None] = lambda text: None,
        start: Start = spawned,
    ):
        self.folder, self.jobs, self.at_once, self.tell, self.say = folder, list(jobs), at_once, tell, say
        self.start = start
        self.threads = threads or max(1, (told() or cores()) // at_once)
        self.asked = threads is not None
        self.head: dict[str, Any] = {"jobs": at_once, "threads": self.threads}

    def run(self) -> None:
        """Until every job is done, or Ctrl-C."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()
        with Interrupt(self.say) as interrupted:
            try:
                self._work(interrupted)
            except BaseException:  # a second Ctrl-C, or a fault here: no process is left behind
                self._signal_all(signal.SIGKILL)
                raise
            finally:
                self.write()

    def _work(self, interrupted: Callable[[], bool]) -> None:
        told = False
        while True:
            for job in self._in("running"):
                if job.look():
                    self.tell(job)
                if job.process is not None and job.process.poll() is not None:
                    self._close(job, interrupted())
            running, waiting = self._in("running"), self._in("waiting")
            if interrupted():
                if not told:
                    self._signal_all(signal.SIGINT)
                    told = True
                waiting = []
            if not running and not waiting:
                return
            for job in waiting[: self.at_once - len(running)]:
                self._start(job)
            time.sleep(POLL)

    def _in(self, state: State) -> list[Job]:
        return [job for job in self.jobs if job.state == state]

    def _start(self, job: Job) -> None:
        """One process in the run's folder, which takes the run's lock and holds it as long as it lives."""
        job.folder.mkdir(parents=True, exist_ok=True)
        if is_held(job.folder):
            job.state, job.message = "failed", in_use(job.folder)
            self._changed(job)
            return
        if not (job.folder / CONFIG).is_file():
            write_text_atomically(job.folder / CONFIG, to_toml(job.config))
        remember(job.folder, job.config.model_dump(mode="json"))  # the recipe, and the code that it names, is what was asked for here
        environment = os.environ | {CORES: str(self.threads)}
        if self.asked or told():
            environment["OMP_NUM_THREADS"] = str(self.threads)  # otherwise each run chooses among its cores by its model's size
        job.process = self.start(["train", "--resume", str(job.folder)], job.folder / LOG, environment)
        job.state, job.started, job.message = "running", time.monotonic(), ""
        self._changed(job)

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
            log = job.folder / LOG
            text = log.read_bytes()[-(1 << 14) :].decode("utf-8", "replace") if log.exists() else ""
            lines = [line.strip() for line in text.splitlines() if line.strip()]  # the last one names the error
            job.state, job.message = "failed", lines[-1][:400] if lines else f"exit code {job.exit_code}"
        self._changed(job)

    def _changed(self, job: Job) -> None:
        self.tell(job)
        self.write()

    def _signal_all(self, number: int) -> None:
        for job in self._in("running"):
            if job.process is not None and job.process.poll() is None:
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
