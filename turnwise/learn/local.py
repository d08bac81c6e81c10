"""Everything of a run that needs weights, as one object: the policy's learner, the auxiliary models, the signals that read them, and their
checkpoints. A run on one process has one. Learner ranks have one each, and make the same calls together (cluster/ranks.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.models import Models
from turnwise.learn.learner import Learner
from turnwise.learn.sections import SftSettings
from turnwise.learn.sft import warm_start
from turnwise.util.errors import TurnwiseError
from turnwise.util.metrics import numbers

if TYPE_CHECKING:
    from turnwise.cluster.ranked_learner import RankedLearner

Learning: TypeAlias = "LocalLearner | RankedLearner"  # whoever has the weights: what the loop asks of it
Signal = Callable[[Batch, Models], Mapping[str, Any]]


@dataclass(frozen=True)
class LocalLearner:
    """The weights in this process. `annotates`: credit, or the metrics about age, need what only the learner knows. `adapters`: only these
    are trained. `preprocessor` is saved with the weights: the tokenizer, or the processor that holds it."""

    policy: Learner
    models: Models
    signals: Sequence[tuple[str, Signal]] = ()
    annotates: bool = False
    adapters: bool = False
    preprocessor: Any = None

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        """The batch with all columns that need weights: values, a KL penalty in the reward, and those of the recipe's signals, in their
        order; each sees those of the ones before. `progress` is the share of the run that is done."""
        if self.annotates:
            batch = self.policy.annotate(batch)
        self.models.at(progress)
        for name, signal in self.signals:
            columns = signal(batch, self.models)
            if not isinstance(columns, Mapping):
                raise TurnwiseError(f"signal {name!r} returned {type(columns).__name__}; a dictionary of columns is needed")
            batch = batch.with_columns(columns)
        return batch

    def update(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        """One update of the policy, then one of every auxiliary model that has a loss, from a batch with its credit. Metrics by
        `learner/NAME` and `model/NAME`."""
        metrics = numbers("learner", self.policy.update(batch, seed, progress=progress))
        self.models.at(progress)
        return metrics | numbers("model", self.models.update(batch))

    def imitate(
        self,
        examples: Sequence[Trajectory],
        settings: SftSettings,
        seed: int,
        measure: Callable[[], float] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Learn the responses of the examples; `measure` says from time to time which share of tasks the model wins."""
        return warm_start(self.policy, examples, settings, seed, measure, cancelled)

    def follow_policy(self) -> None:
        """After a warm start: the reference and models that started as copies of the policy are copied again. With adapters, the reference
        is the model without them, and stays."""
        if not self.adapters:
            self.policy.reset_reference()
        self.models.follow_policy()

    def save(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        """Write checkpoint `step`: all weights, and this state."""
        tensors, own = self.policy.state()
        auxiliary, theirs = self.models.state()
        state = {**state, "learner": own, "models": theirs}
        if self.policy.ranks is None:
            checkpoint.save(folder, step, tensors | auxiliary, state, score=score, keep=keep)
        else:
            checkpoint.save_together(self.policy.ranks, folder, step, tensors | auxiliary, state, score=score, keep=keep)

    def restore(self, path: Path) -> dict[str, Any]:
        """Load the weights of an intact checkpoint. Returns its state."""
        stored = checkpoint.read(path, self.models.like, self.policy.ranks)
        self.policy.load_state(stored.tensors, stored.state["learner"])
        self.models.load_state(stored.tensors, stored.state.get("models", {}))
        return stored.state

    def weights(self, merged: bool) -> Iterator[tuple[str, Tensor]]:
        """What an engine with weights of its own needs: all of them by name, with adapters merged into them; or, for a copy of the same
        model, those that are trained."""
        if merged:
            yield from self.policy.full_weights()
            return
        for name, parameter in self.policy.weights.parameters.items():
            yield name, parameter.detach()

    def save_model(self, folder: Path, merged: bool = True) -> Path:
        """Write the policy as a Hugging Face folder."""
        return self.policy.save_model(folder, merged=merged, tokenizer=self.preprocessor)
