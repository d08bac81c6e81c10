"""A driver that is killed and resumed: the real loop, run folder, checkpoints and workers, with a learner and engines that have no model.

    python tests/support/cluster_driver.py ADDRESS FOLDER      # one life after another, each killed at a moment but the last; writes JSON

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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cluster_light import GROUPS, Learner, LightParts, Sender, task_slots
from conftest import ROOT

from turnwise.cluster.collecting import RemoteCollector, RemoteCollectors
from turnwise.cluster.source import Access, ClusterSource, RemoteEngine
from turnwise.cluster.work import Spec
from turnwise.cluster.worker import RolloutWorker
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.faults import FaultWatch
from turnwise.collect.source import LocalSource
from turnwise.data.batch import Batch
from turnwise.data.tasks import Task, TaskSet
from turnwise.learn import checkpoint
from turnwise.methods.planning import Plain
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs import folder as folders
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.parts import Evaluator, Training, build_credit
from turnwise.setup.state import restore
from turnwise.train import run_iterations

AT_THE_START = ("starts", "started engines")
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


class Driver:
    """The parts of a run without a model. What it learns is one number, which is all that its checkpoints hold."""

    def __init__(self, moment: str, least: int):
        self.moment, self.least, self.light = moment, least, Learner()

    def at(self, moment: str) -> None:
        """The driver has come to a moment."""
        if moment == self.moment and len(self.light.batches) >= self.least:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.at(moment)
            return function(*arguments, **named)

        return call

    def training(self, config: Config) -> Training:
        import ray

        def start(number: int) -> Any:
            return ray.remote(RolloutWorker).options(num_cpus=1, max_restarts=0, max_concurrency=16).remote(LightParts, number)

        workers = RolloutWorkers(start, 1, deadline=180.0)  # a slow start on a busy machine is not a loss
        self.at("started engines")
        given = workers.employ
        workers.employ = lambda *arguments: [given(*arguments), self.at("handed out work")][0]  # type: ignore[method-assign]
        sender = Sender(self.light)
        sender.send = self.before("publishes", sender.send)  # type: ignore[method-assign]
        access = Access(workers)
        engine = RemoteEngine(access, sender)
        engine.refresh()
        slots = task_slots()
        source = ClusterSource(LocalSource(slots, GROUPS, lambda: RemoteCollector(access, Spec()), lambda: engine), lambda: engine)
        stack = ExitStack()
        stack.callback(engine.close)
        collectors = RemoteCollectors(lambda: access, 6)
        panel = TaskSet((Task("8", data={"number": 8}),), "held out")
        evaluate = Evaluator(panel, config.eval, self.before_each("evaluates", collectors), Plain(), slots, 6)
        faults = FaultWatch(print)
        return Training(config, source, Plain(), slots, self, self.credit, evaluate, lambda on_task: {}, faults, resources=stack)

    def before_each(self, moment: str, collectors: RemoteCollectors) -> Any:
        collectors.evaluation = self.before(moment, collectors.evaluation)  # type: ignore[method-assign]
        return collectors

    def credit(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        return build_credit(Config())(batch)

    # -- the learner ----------------------------------------------------------------------------------------------------------------

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        self.at("has collected")
        return batch

    def update(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        self.light.update(batch.trajectories, len(self.light.batches))
        self.at("has learned")
        return {"learner/weight": float(self.light.weight)}

    def imitate(self, *arguments: Any) -> dict[str, float]:
        return {}

    def follow_policy(self) -> None: ...

    def save(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        learned = {"weight": self.light.weight, "batches": self.light.batches}
        checkpoint.save(folder, step, {}, {**state, "learned": learned}, score=score, keep=keep)

    def restore(self, path: Path) -> dict[str, Any]:
        stored = checkpoint.read(path).state
        self.light.weight, self.light.batches = stored["learned"]["weight"], stored["learned"]["batches"]
        return stored

    def save_model(self, folder: Path, merged: bool = True) -> Path:
        return folder


def live(folder: Path, address: str, moment: str, least: int) -> None:
    """The run, or what is left of it, until a moment."""
    import ray

    made = folder / "run"
    config = Config.load(ROOT / "recipes" / "own-env.toml", SETTINGS | {"out": str(folder), "name": "run"})
    run = Run.open(made) if made.is_dir() else Run.create(folder, "run", to_toml(config))
    with run.locked("train"):
        driver = Driver(moment, least)
        driver.at("starts")
        checkpoint.write_manifest = driver.before("before the manifest", checkpoint.write_manifest)
        folders.write_texts = driver.before("writes the batch", folders.write_texts)
        run.on_log = lambda metrics: driver.at("logged")
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        training = driver.training(config)
        state = restore(run, training, print)
        run_iterations(run, training, state, Reporter())
        training.close()


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
