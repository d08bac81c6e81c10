"""All models of a run, as signals see them: the policy, the reference, and those of `[models.NAME]` by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from turnwise.data.batch import Batch
from turnwise.learn.auxiliary.model import AuxiliaryModel, HasLoss
from turnwise.learn.auxiliary.scorer import Scorer, plain_weights
from turnwise.learn.checkpoint import AUXILIARY
from turnwise.learn.forward import has_adapters
from turnwise.learn.learner import Learner
from turnwise.learn.ranks.tensors import is_sharded
from turnwise.util.errors import TurnwiseError, unknown_name

POLICY, REFERENCE = "policy", "reference"


class Policy(Scorer):
    """The policy as a scorer; the learner updates it."""

    def __init__(self, learner: Learner, tokenizer: Any):
        super().__init__(POLICY, learner.policy, tokenizer, learner.budget, temperature=learner.settings.temperature, ranks=learner.ranks)
        self._learner = learner

    @property
    def weights_by_name(self) -> dict[str, Tensor]:
        """The exact weights: the optimiser's float32 ones."""
        return plain_weights(self.packed, self._learner.weights.masters)


class Models:
    """`models.policy`, `models.reference`, `models["teacher"]`. `keep_reference`: keep a reference even if no KL needs one. `longest` is
    the largest number of tokens of a response (engine.max_tokens), 0 if it is unknown."""

    def __init__(
        self,
        learner: Learner,
        tokenizer: Any,
        auxiliary: Mapping[str, AuxiliaryModel] | None = None,
        keep_reference: bool = False,
        longest: int = 0,
    ):
        self.learner, self.auxiliary, self.longest = learner, dict(auxiliary or {}), longest
        if learner.critic is not None and learner.critic.name in self.auxiliary:
            raise TurnwiseError(f"models.{learner.critic.name}: the critic of learner.value has this name, choose another one")
        self.progress = 0.0
        self.policy = Policy(learner, tokenizer)
        self._own_reference = learner.make_reference() if keep_reference and learner.reference is None else None
        self._plan_memory()

    @property
    def reference(self) -> Scorer:
        """The frozen policy that KL is measured against: as it was at the start, after a warm start; with adapters, the base model."""
        found = self.learner.reference or self._own_reference
        if found is None:
            raise TurnwiseError('this run keeps no reference: register what reads it with needs=("model.reference",), or set objective.kl')
        learner = self.learner
        temperature = learner.settings.temperature
        return Scorer(
            REFERENCE,
            found.policy,
            self.policy.tokenizer,
            learner.budget,
            temperature=temperature,
            active=found.active,
            ranks=learner.ranks,
        )

    def __getitem__(self, name: str) -> Any:
        if name in (POLICY, REFERENCE):
            return self.policy if name == POLICY else self.reference
        if self.learner.critic is not None and name == self.learner.critic.name:
            return self.learner.critic
        if name not in self.auxiliary:
            hint = f"a recipe brings it with [models.{name}]"
            error = unknown_name("model", name, self)
            raise TurnwiseError(f"{error}; {hint}")
        return self.auxiliary[name]

    def __iter__(self) -> Iterator[str]:
        yield from (POLICY, REFERENCE, *self.auxiliary)

    def __contains__(self, name: object) -> bool:
        return name in (POLICY, REFERENCE) or name in self.auxiliary

    def at(self, progress: float) -> None:
        """The progress of the run, from 0 to 1: falling learning rates and the weights of curricula follow it."""
        self.progress = progress
        for model in self.auxiliary.values():
            model.progress = progress

    def update(self, batch: Batch) -> dict[str, float]:
        """Train every model that has a loss; metrics by `NAME/metric`."""
        found: dict[str, float] = {}
        for name, model in self.auxiliary.items():
            if model.trained and isinstance(model.kind, HasLoss):
                found |= {f"{name}/{metric}": value for metric, value in model.update(batch).items()}
        return found

    def follow_policy(self) -> None:
        """The policy has been changed by a warm start: models that started as copies of it are copied again, and so is the reference."""
        for model in self.auxiliary.values():
            if model.starts_from_policy:
                model.follow(self.policy)
        if self._own_reference is not None and not has_adapters(self.learner.model):
            self._own_reference.follow(self.learner.policy)

    # -- memory -------------------------------------------------------------------------------------------------------------------

    def _plan_memory(self) -> None:
        """Every model leaves room for what the others will still allocate permanently on its device: the moments of their optimisers."""
        self.learner.memory.others = lambda: self._to_come(None)
        for name, model in self.auxiliary.items():
            model.budget.memory.others = lambda own=name: self._to_come(own)  # type: ignore[misc]

    def _to_come(self, own: str | None) -> int:
        """Bytes that all models but one will still take on its device; `own` None means the policy."""
        device = self.learner.device if own is None else self.auxiliary[own].packed.device
        bytes_: int = 0
        if own is not None and same_device(self.learner.device, device):
            bytes_ += self.learner.memory.moments_to_come(self.learner.optimiser)
        for name, model in self.auxiliary.items():
            if name != own and model.optimiser is not None and same_device(model.packed.device, device):
                bytes_ += model.budget.memory.moments_to_come(model.optimiser)
        return bytes_

    # -- keeping ------------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint keeps of all auxiliary models: tensors in a group for each, and plain numbers by name."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, model in self.auxiliary.items():
            own, numbers[name] = model.state()
            tensors |= {f"{AUXILIARY}{name}/{key}": tensor for key, tensor in own.items()}
        if self._own_reference is not None:
            weights = self._own_reference.tensors()
            copied = {key: tensor if is_sharded(tensor) else tensor.to("cpu", copy=True) for key, tensor in weights.items()}
            tensors |= {f"{AUXILIARY}{REFERENCE}/{key}": tensor for key, tensor in copied.items()}
        return tensors, numbers

    def like(self, name: str) -> Tensor | None:
        """A tensor that is sharded as the one of this name in a checkpoint; None if that is not sharded."""
        if not name.startswith(AUXILIARY):
            return self.learner.like(name)
        own = name.removeprefix(f"{AUXILIARY}{REFERENCE}/")
        return None if self._own_reference is None else self._own_reference.tensors().get(own)

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, model in self.auxiliary.items():
            if name not in numbers:
                raise TurnwiseError(f"the checkpoint has no state of model {name!r}: it was written by a run without [models.{name}]")
            model.load_state(_group(tensors, name), numbers[name])
        if self._own_reference is not None:
            self._own_reference.load(_group(tensors, REFERENCE))


def _group(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    start = f"{AUXILIARY}{name}/"
    return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two names mean the same device: a GPU without a number is the current one."""
    if one.type != other.type:
        return False
    return one.type != "cuda" or _number(one) == _number(other)


def _number(device: torch.device) -> int:
    return int(torch.cuda.current_device() if device.index is None else device.index)
