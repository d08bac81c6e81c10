"""A driver that is killed and resumed: the real loop, run folder, checkpoints and crew, with a learner and engines that have no model.

    python tests/cluster_driver.py ADDRESS FOLDER      # one life after another, each killed at a moment but the last; writes JSON

This process loads what a driver needs and never uses it: every life is a fork of it, so that a life costs a second and not ten. A moment is
something that happens in the driver, not a second. Life k dies the first time that it comes to its moment with at least k updates done, so
that each life gets further than the one before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cluster_light import GROUPS, Learner, Make, Sender, places
from conftest import ROOT

from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.crew import Crew
from turnwise.cluster.rollouter import Rollouter
from turnwise.cluster.source import Access, ClusterSource, RemoteEngine
from turnwise.cluster.work import Spec
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.data.batch import Batch
from turnwise.data.tasks import Task, TaskSet
from turnwise.learn import checkpoint
from turnwise.methods.planning import Plain
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs import folder as folders
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.state import restore
from turnwise.setup.system import System
from turnwise.train import run_iterations
from turnwise.util.beside import Pause

AT_THE_START = ("starts", "hired engines")
MOMENTS = (
    *AT_THE_START,
    "handed out work",
    "has collected",
    "has learned",
    "writes the batch",
    "publishes",
    "logged",
    "before the manifest",
    "evaluates",
)
BATCHES = 11  # one for each strike, and one more
SETTINGS: dict[str, Any] = {"sft": None, "iterations": BATCHES, "run.checkpoint_every": 2, "run.keep_rollouts": BATCHES, "eval.every": 3}


class Driver(System):
    """The parts of a run without a model. What it learns is one number, which is all that its checkpoints hold."""

    moment, least = "", 0

    def at(self, moment: str) -> None:
        """The driver has come to a moment."""
        if moment == self.moment and len(self.light.batches) >= self.least:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.at(moment)
            return function(*arguments, **named)

        return call

    @cached_property
    def light(self) -> Learner:
        return Learner()

    @cached_property
    def access(self) -> Access:
        import ray

        def hire(number: int) -> Any:
            return ray.remote(Rollouter).options(num_cpus=1, max_restarts=0, max_concurrency=16).remote(Make(number), number)

        crew = Crew(hire, 1, deadline=180.0)  # a slow start on a busy machine is not a loss
        self.at("hired engines")
        given = crew.employ
        crew.employ = lambda *arguments: [given(*arguments), self.at("handed out work")][0]  # type: ignore[method-assign]
        return Access(crew)

    @cached_property
    def engine(self) -> Any:
        sender = Sender(self.light)
        sender.send = self.before("publishes", sender.send)  # type: ignore[method-assign]
        made = RemoteEngine(self.access, sender)
        made.refresh()
        return made

    @cached_property
    def places(self) -> Any:
        return places()

    @cached_property
    def plan(self) -> Any:
        return Plain()

    @cached_property
    def source(self) -> Any:
        return ClusterSource(self.places, GROUPS, lambda: RemoteCollector(self.access, Spec()), self.engine, access=self.access)

    def load_ahead(self, pause: Pause = lambda: None) -> None:
        self.access.crew.load_ahead(self.places.coming(GROUPS))

    def annotate(self, batch: Batch) -> Batch:
        self.at("has collected")
        return batch

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        return batch

    def update(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        self.light.update(batch.trajectories, len(self.light.batches))
        self.at("has learned")
        return {"weight": float(self.light.weight)}

    def train_models(self, batch: Batch, progress: float) -> dict[str, float]:
        return {}

    def evaluate(self) -> Evaluation:
        self.at("evaluates")
        return run_panel(RemoteCollector(self.access), TaskSet((Task("8", data={"number": 8}),), "held out"))

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        return {}

    def keep(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        learned = {"weight": self.light.weight, "batches": self.light.batches}
        checkpoint.save(folder, step, {}, {**state, "learned": learned}, score=score, keep=keep)

    def restored(self, path: Path) -> dict[str, Any]:
        found = checkpoint.read(path).state
        self.light.weight, self.light.batches = found["learned"]["weight"], found["learned"]["batches"]
        return found


def live(folder: Path, address: str, moment: str, least: int) -> None:
    """The run, or what is left of it, until a moment."""
    import ray

    made = folder / "run"
    config = Config.load(ROOT / "recipes" / "own-env.toml", SETTINGS | {"out": str(folder), "name": "run"})
    run = Run.open(made) if made.is_dir() else Run.create(folder, "run", to_toml(config))
    with run.locked("train"):
        driver = Driver(config)
        driver.moment, driver.least = moment, least
        driver.at("starts")
        checkpoint.write_manifest = driver.before("before the manifest", checkpoint.write_manifest)
        folders.write_texts = driver.before("writes the batch", folders.write_texts)
        run.on_log = lambda metrics: driver.at("logged")
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        state = restore(run, driver, print)
        run_iterations(run, driver, state, Reporter())
        driver.close()


def lives(folder: Path, address: str, moments: Sequence[str]) -> list[int]:
    """The exit codes of the lives that are killed at these moments, and of one that is not."""
    import ray  # noqa: F401  # once for all lives

    codes = []
    for least, moment in enumerate([*moments, ""]):
        child = os.fork()
        if child == 0:
            try:
                live(folder, address, moment, 0 if moment in AT_THE_START else least)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if codes[-1] != -signal.SIGKILL:
            break
    return codes


if __name__ == "__main__":
    sys.stdout.write(json.dumps(lives(Path(sys.argv[2]), sys.argv[1], MOMENTS)))
