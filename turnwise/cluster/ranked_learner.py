"""A learner that is several processes. `RankedLearner` is what the loop uses: it has the methods of a learner in this process
(learn/local.py), and the driver has no model. `RankLearner` is what each rank works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.cluster.ranks import LearnerRanks
from turnwise.cluster.weights import Stored
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.learn import checkpoint
from turnwise.learn.local import LocalLearner
from turnwise.learn.sections import SftSettings

MANY = 10**9  # checkpoints that the ranks keep


class RankLearner:
    """What a rank works with, in its process: the learner of all ranks, and what only ranks are asked for."""

    def __init__(self, learner: LocalLearner):
        self.learner = learner
        self.update, self.imitate, self.follow_policy = learner.update, learner.imitate, learner.follow_policy
        self.save, self.restore, self.save_model = learner.save, learner.restore, learner.save_model

    def ready(self) -> None:
        """Everything that a recipe can get wrong is loaded."""

    def columns(self, batch: Batch, progress: float) -> dict[str, Any]:
        """The columns that signals add to a batch, or change."""
        new = self.learner.signal(batch, progress)
        names = [name for name in new.rollouts.names() if not batch.has(name) or not np.array_equal(new.column(name), batch.column(name))]
        return {name: new.column(name) for name in names}

    def weights(self, merged: bool) -> Stored:
        """The whole weights; those of the critic stay here."""
        return Stored.of(self.learner.policy.full_weights(merged))

    def progress(self) -> int:
        """Passes through the model so far."""
        sharded = self.learner.policy.policy.sharded
        return 0 if sharded is None else int(sharded.passes)


@dataclass(frozen=True)
class RankedLearner:
    """The learner as the driver sees it. `signals`: whether there are columns that need weights; `changes`: whether they change models,
    so that they are repeated after a loss."""

    ranks: LearnerRanks
    signals: bool = False
    changes: bool = False
    say: Callable[[str], None] = lambda text: None

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        if not self.signals:
            return batch
        return batch.with_columns(self.ranks.call("columns", batch, progress, pure=not self.changes))

    def update(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        metrics: dict[str, float] = self.ranks.call("update", batch, seed, progress)
        return metrics

    def imitate(
        self,
        examples: Sequence[Trajectory],
        settings: SftSettings,
        seed: int,
        measure: Callable[[], float] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        if measure is not None:
            self.say("sft.until: several learners measure at the end of the warm start only")
        metrics: dict[str, float] = self.ranks.call("imitate", list(examples), settings, seed)
        return metrics

    def follow_policy(self) -> None:
        self.ranks.call("follow_policy")

    def save(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        path = folder.absolute() / f"step-{step:08d}"
        self.ranks.save("save", folder.absolute(), step, dict(state), score, MANY, then=("restore", path))
        checkpoint.prune(folder, keep)  # only now: ranks that are lost while they write start again from the one before

    def restore(self, path: Path) -> dict[str, Any]:
        state: dict[str, Any] = self.ranks.call("restore", path.absolute())
        return state

    def weights(self, merged: bool) -> Iterator[tuple[str, Tensor]]:
        stored: Stored = self.ranks.call("weights", merged, pure=True)
        yield from stored.tensors(torch.device("cpu")).items()

    def save_model(self, folder: Path, merged: bool = True) -> Path:
        """Write the model; the ranks have its tokenizer."""
        self.ranks.call("save_model", folder.absolute(), merged, pure=True)
        return folder
