"""Processes of a small run that are killed at given moments: engines without a model (`cluster_light.py`), their environments, their nodes.

A moment is something that happens in a process, not a second. A file tells all processes which batch is being made, and another one that a
strike was carried out. So each happens once, whoever comes by first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cluster_light import Learner, LightParts
from toy_env import Corridor

from turnwise.cluster.work import Outcome, Work
from turnwise.cluster.worker import RolloutWorker
from turnwise.collect.hooks import Hooks
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition


@dataclass(frozen=True)
class Doom:
    """`strikes[k]` is the moment of batch k at which a process of the kind dies: "engine", "worker" or "node"."""

    kind: str
    strikes: tuple[str, ...]
    folder: Path

    def begin(self, batch: int) -> None:
        """From now on this batch is made."""
        (self.folder / "next").write_text(str(batch))
        (self.folder / "next").replace(self.folder / "batch")

    def at(self, moment: str, victims: Sequence[int] = ()) -> None:
        """A process has come to a moment. The victims of its kind die; without any, those of the first engine."""
        if self.wanted != moment:
            return
        try:
            os.close(os.open(self.folder / f"struck {self._batch}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        first, *others = victims or self._known()
        os.kill(first, signal.SIGKILL)
        for victim in others:
            with suppress(ProcessLookupError):  # processes of a node end by themselves when it is gone
                os.kill(victim, signal.SIGKILL)

    @property
    def _batch(self) -> int:
        return int((self.folder / "batch").read_text())

    @property
    def wanted(self) -> str:
        """The moment of this batch."""
        return self.strikes[self._batch] if self._batch < len(self.strikes) else ""

    def _known(self) -> list[int]:
        engine, raylet, *workers = map(int, (self.folder / "engine 0").read_text().split())
        return {"engine": [engine], "worker": workers, "node": [raylet, engine]}[self.kind]

    @property
    def struck(self) -> list[int]:
        """The batches in which something died."""
        return sorted(int(file.name.split()[1]) for file in self.folder.glob("struck *"))


class Watched(Corridor):
    """A corridor that comes to moments, in its process."""

    def __init__(self, doom: Doom):
        super().__init__()
        self.doom = doom

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.doom.at("reset", [os.getpid()])
        found = super().reset(task, seed)
        self.doom.at("was reset", [os.getpid()])
        return found

    def step(self, action: str) -> Transition:
        self.doom.at("step", [os.getpid()])
        found = super().step(action)
        self.doom.at("last step" if found.done else "stepped", [os.getpid()])
        return found


class Parts(LightParts):
    """What a watched engine plays with."""

    doomed: DoomedWorker

    def on_turn(self, trajectory: Trajectory) -> None:
        self.doomed.at("first turn" if len(trajectory.turns) == 1 else "turn")
        super().on_turn(trajectory)

    def publish(self, version: int, weights: Any) -> None:
        self.doomed.at("takes weights")
        super().publish(version, weights)
        self.doomed.at("has weights")


class DoomedWorker(RolloutWorker):
    """The actor of an engine, which comes to moments."""

    def __init__(self, doom: Doom, number: int):
        self.doom = doom
        self.parts: Parts | None = None
        super().__init__(self._make, number)

    def at(self, moment: str) -> None:
        pids = [] if self.parts is None else self.parts.pids
        own = {"engine": [os.getpid()], "worker": pids, "node": [os.getppid(), os.getpid()]}[self.doom.kind]
        if self.number == 0:
            (self.doom.folder / "new").write_text(" ".join(map(str, [os.getpid(), os.getppid(), *pids])))
            (self.doom.folder / "new").replace(self.doom.folder / "engine 0")
        self.doom.at(moment, own)

    def _make(self, hooks: Hooks) -> Parts:
        self.at("starts")
        env = partial(Watched, self.doom) if self.doom.kind == "worker" else Corridor
        self.parts = Parts(hooks, workers=int(self.doom.kind == "worker"), env=env)
        self.parts.doomed = self
        self.at("started")
        return self.parts

    def _perform(self, work: Work) -> Outcome:
        self.at("has work")
        found = super()._perform(work)
        self.at("work is done")
        return found

    def _ends(self, trajectory: Trajectory) -> None:
        self.at("attempt ends")
        super()._ends(trajectory)


class DoomedLearner(Learner):
    """The learner of the driver, which comes to moments, too. `settle` waits until all engines are up, because a dead one cannot be killed;
    `mend` is called once per batch."""

    def __init__(self, doom: Doom):
        super().__init__()
        self.doom = doom
        self.settle: Callable[[], None] = lambda: None
        self.mend: Callable[[], None] = lambda: None
        doom.begin(0)

    def update(self, trajectories: Sequence[Trajectory], version: int) -> None:
        self.mend()
        self._at("learns")
        super().update(trajectories, version)
        self.doom.begin(version + 1)
        self._at("has learned")

    def _at(self, moment: str) -> None:
        if self.doom.wanted == moment:
            self.settle()
        self.doom.at(moment)


class Sits:
    """An actor that takes a core. It stands here because the processes of Ray find this module."""

    def here(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())
