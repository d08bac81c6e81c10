"""A run whose learner is several processes: the driver has no model, and delegates everything that needs one to a gang of ranks.

`GangSystem` is the driver's side: the loop calls the same methods as ever. `Learning` is a rank's side, also a `System`, of which only the
learning half is used. All ranks make the same calls with the same arguments; the learner splits the work inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from turnwise.cluster.gang import Gang, Rank
from turnwise.cluster.placement import Seat, prefers
from turnwise.cluster.start import import_ray
from turnwise.cluster.weights import Stored
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.learn import checkpoint
from turnwise.learn import models as loading
from turnwise.learn.auxiliary.models import Models
from turnwise.learn.learner import Learner
from turnwise.learn.models import choose_device
from turnwise.learn.ranks.group import Ranks, join, waits
from turnwise.learn.sft import SftSettings
from turnwise.setup.build import build_learner
from turnwise.setup.cluster import OWN_WEIGHTS, ClusterSystem, Recruit
from turnwise.setup.system import System
from turnwise.util.errors import TurnwiseError

MANY = 10**9  # checkpoints that the ranks keep


class GangSystem(ClusterSystem):
    """A run with several learner ranks. The driver has the model's tokenizer only."""

    def connect(self) -> None:
        if self.config.cluster is not None and self.config.cluster.transfer in ("ipc", "broadcast"):
            raise TurnwiseError(
                f"cluster.transfer={self.config.cluster.transfer} is for one learner: several send their weights through Ray's store "
                "(cluster.transfer=auto)"
            )
        super().connect()

    @cached_property
    def tokenizer(self) -> Any:
        """From the model's folder; a tiny model's is made with the model."""
        path = self.model_folder or self.config.model.path
        return self._loaded[1] if path is None else loading.tokenizer_of(str(path))

    @cached_property
    def gang(self) -> Gang:
        """The ranks, started with the first call."""
        self.connect()
        seats = [seat for seat in self._seats if seat.part.startswith("learner")]
        apprentice = Apprentice(Recruit.of(self), self.own.deadline)

        def hire(rank: int) -> Any:
            return _hired(seats[rank], apprentice, rank, len(seats))

        return Gang(hire, self.own.learners, self.own.deadline, self.own.retries, self.say)

    @cached_property
    def learner(self) -> Learner:
        """What the driver needs of a learner: where it is, and its export."""
        self.gang.call("ready", pure=True)
        return cast("Learner", RemoteLearner(self.gang))

    @cached_property
    def models(self) -> Models:
        """None here: signals and losses that read models run in the ranks."""
        return cast("Models", None)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        merged = self.config.engine.name in OWN_WEIGHTS
        stored: Stored = self.gang.call("weights", merged, pure=True)
        yield from stored.tensors(torch.device("cpu")).items()

    def annotate(self, batch: Batch) -> Batch:
        if not (self.annotates or self.measures_age):
            return batch
        return batch.with_columns(self.gang.call("columns", "annotated", batch, pure=True))

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        return batch.with_columns(self.gang.call("columns", "signal", batch, progress)) if self.config.signal else batch

    def learn(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        return cast("dict[str, float]", self.gang.call("learn", batch, seed, progress))

    def train_models(self, batch: Batch, progress: float) -> dict[str, float]:
        return cast("dict[str, float]", self.gang.call("train_models", batch, progress)) if self.config.models else {}

    def teach(
        self, examples: Sequence[Trajectory], settings: SftSettings, order: int, look: Callable[[], float] | None = None
    ) -> dict[str, float]:
        if look is not None:
            self.say("sft.until: several learners measure at the end of the warm start only")
        return cast("dict[str, float]", self.gang.call("teach", list(examples), settings, order))

    def settle(self) -> None:
        self.gang.call("settle")

    def ranks_worked(self) -> dict[str, float]:
        return {f"rank_{rank}": seconds for rank, seconds in enumerate(self.gang.worked())}

    def keep(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        path = folder.absolute() / f"step-{step:08d}"
        self.gang.save("keep", folder.absolute(), step, dict(state), score, MANY, then=("restored", path))
        checkpoint.prune(folder, keep)  # only now: ranks that are lost while they write start again from the one before

    def restored(self, path: Path) -> dict[str, Any]:
        return cast("dict[str, Any]", self.gang.call("restored", path.absolute()))

    def close(self) -> None:
        if "gang" in self.__dict__:
            self.gang.close()
        super().close()


@dataclass(frozen=True)
class RemoteLearner:
    """The learner as the driver sees it."""

    gang: Gang
    device = torch.device("cpu")  # of the weights as they arrive here

    def save_model(self, folder: str | Path, merged: bool = True, tokenizer: Any = None) -> Path:
        """Write the model; the ranks have its tokenizer."""
        self.gang.call("save_model", Path(folder).absolute(), merged, pure=True)
        return Path(folder)


def _hired(seat: Seat, apprentice: Apprentice, rank: int, size: int) -> Any:
    limits: dict[str, Any] = {"num_cpus": seat.cpus, "num_gpus": seat.gpus, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
    return import_ray().remote(Rank).options(scheduling_strategy=prefers(seat.node), **limits).remote(apprentice, rank, size)


@dataclass(frozen=True)
class Apprentice:
    """Makes what a rank works with, in its process."""

    recruit: Recruit
    seconds: float

    def __call__(self, rank: int, size: int, address: str) -> Learning:
        self.recruit.prepare()
        ranks = join(rank, size, address, device=choose_device(self.recruit.config.device), timeout=self.seconds)
        with self.recruit.vocabulary() as words:
            learning = Learning(self.recruit.config, words=words)
            learning.ranks = ranks
            learning.ready()
        return learning


class Learning(System):
    """The learning half of a run, in a rank."""

    ranks: Ranks

    @cached_property
    def learner(self) -> Learner:
        return build_learner(self.config, self._loaded[0], self.vision, self.ranks)

    def ready(self) -> None:
        """Load everything that a recipe can get wrong."""
        for part in ("learner", "models", "made_signals"):
            getattr(self, part)

    def _rest_engine(self) -> None:
        """There is no engine here."""

    def annotated(self, batch: Batch) -> Batch:
        """The batch with what the learner knows of it, whether or not credit needs it."""
        return self.learner.annotate(batch)

    def columns(self, method: str, batch: Batch, *arguments: Any) -> dict[str, Any]:
        """The columns that a method adds to a batch, or changes."""
        new = getattr(self, method)(batch, *arguments)
        names = [name for name in new.rollouts.names() if not batch.has(name) or not np.array_equal(new.column(name), batch.column(name))]
        return {name: new.column(name) for name in names}

    def weights(self, merged: bool) -> Stored:
        """The whole weights; those of the critic stay here."""
        return Stored.of(self.learner.full_weights(merged))

    def save_model(self, folder: Path, merged: bool) -> None:
        """Write the model as a Hugging Face folder."""
        self.learner.save_model(folder, merged, self.preprocessor)

    def progress(self) -> int:
        """Passes through the model so far."""
        sharded = self.learner.policy.sharded if "learner" in self.__dict__ else None
        return 0 if sharded is None else int(sharded.lockstep.passes)

    def waited(self) -> float:
        """Seconds that this rank has waited for the others so far."""
        return waits.seconds
