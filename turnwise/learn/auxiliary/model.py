"""A model next to the policy: frozen, or trained by a separate optimiser.

    scores = models["teacher"].score(batch)                        # log-prob of every response token
    metrics = models["prm"].update(batch, loss, columns=("trajectory.success", "token.logprob"))

A loss sees a whole mini-batch at once, however much memory that takes to compute. If the mini-batch does not fit, its log-probs and
outputs are computed part by part without gradient, the loss gives the gradient of each of these numbers, and a second pass propagates it
into the weights, again part by part. So a loss may compare the trajectories of a group, and how a batch is cut never changes a gradient.

With several learner ranks, every rank has the whole model. Each computes the log-probs and outputs of its share of a mini-batch; all get
all of them and evaluate the same loss; each propagates the gradient of its share into the weights, and the gradients are summed. The sums
are bitwise identical everywhere, and so are the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.data.batch import Batch
from turnwise.learn.auxiliary.predictions import LEVELS, Predictions, Rows, chosen_columns
from turnwise.learn.auxiliary.scorer import Column, ReadAt, Scorer, Texts, computing, order_of, placed, places_of
from turnwise.learn.device import rng_scope, to_device
from turnwise.learn.forward import PackedModel, has_adapters
from turnwise.learn.hooks import GivesState, TakesState
from turnwise.learn.memory import Budget, Memory
from turnwise.learn.optimiser import Optimiser, Step
from turnwise.learn.packing import Packed, microbatches
from turnwise.learn.ranks.group import Decisions, Ranks
from turnwise.learn.ranks.sharding import passes
from turnwise.learn.saving import fingerprint
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.weights import Weights, check_names
from turnwise.methods.kinds_of_models import Causal
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

T = TypeVar("T")
READ_AT: tuple[ReadAt, ...] = ("turn", "turn_end", "token")
INDEX = "index in the mini-batch"
Metrics = Mapping[str, Any]
Loss = Callable[[Predictions], "Tensor | tuple[Tensor, Metrics] | None"]
Judged = tuple[Tensor | None, Mapping[str, Any]]  # a loss and its metrics
Judge = Callable[[Mapping[str, Tensor]], Judged]


@runtime_checkable
class HasLoss(Protocol):
    """A kind that says itself how its model is trained."""

    def loss(self, predictions: Predictions) -> Tensor | tuple[Tensor, Metrics] | None: ...


@dataclass(frozen=True)
class KindTraits:
    """The optional members of a kind of model (`turnwise/methods/kinds_of_models.py`), which may be any class: read here and nowhere else.

    heads        where each head is read, by name
    head         makes a head from its name and the hidden size; None: `layered(size, layers, spread)`
    spread       deviation of the heads' first weights: two heads that learn the same column then differ. 0: they start at zero
    layers       hidden layers with ReLU in each head
    logprobs     whether its loss reads log-probs
    needs        columns that its loss reads
    classifier   whether the model is a reward model of transformers, whose own last layer is the head
    """

    heads: Mapping[str, ReadAt]
    head: Callable[[str, int], nn.Module] | None
    spread: float
    layers: int
    logprobs: bool
    needs: tuple[str, ...]
    classifier: bool

    @classmethod
    def of(cls, kind: Any) -> KindTraits:
        usual = {"heads": dict, "head": None, "spread": 0.0, "layers": 0, "logprobs": True, "needs": (), "classifier": False}
        found: dict[str, Any] = {name: getattr(kind, name, value) for name, value in usual.items()}
        return cls(**(found | {"heads": dict(found["heads"]()), "needs": tuple(found["needs"])}))


@dataclass(frozen=True)
class Training:
    """How an auxiliary model is trained: its optimiser, and passes over a batch, each of which is one optimiser step."""

    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    epochs: int = 1


class AuxiliaryModel(Scorer):
    """An auxiliary model. `kind` defines its heads and how it learns; `training` None freezes it. With `shares`, `packed` is the policy
    itself: its hidden states feed the heads, and only the heads are trained. With `texts`, it has another tokenizer than the policy."""

    kind: Any

    def __init__(
        self,
        name: str,
        packed: PackedModel,
        tokenizer: Any,
        *,
        kind: Any = None,
        training: Training | None = None,
        dtype: torch.dtype = torch.float32,
        temperature: float = 1.0,
        tokens_per_batch: int = 0,
        shares: bool = False,
        texts: bool = False,
        starts_from_policy: bool = False,
        seed: int = 0,
        ranks: Ranks | None = None,
        decisions: Decisions | None = None,
        budget: Budget | None = None,
    ):
        """`budget`: the one of another model that computes with the same weights; None: its own."""
        self.kind = kind or Causal()
        self.traits = KindTraits.of(self.kind)
        self.training, self.shares, self.texts, self.seed = training, shares, texts, seed
        self.starts_from_policy = starts_from_policy
        self.trained, self.progress, self.updates, self.moved = training is not None, 0.0, 0, False
        size: int = packed.causal.config.get_text_config().hidden_size
        self.places, self.heads = self._make_heads(packed, size, f"models.{name}.kind")
        self.weights = self._make_weights(packed, dtype)
        self.optimiser = Optimiser(self.weights, training.optimiser, decisions=decisions) if training is not None else None
        own = budget or Budget(Memory(packed, self.weights, None), tokens_per_batch, self.weights.zero_grad, decisions)
        super().__init__(name, packed, tokenizer, own, temperature=temperature, masters=self.weights.masters, ranks=ranks)
        if budget is None:
            own.measure(self.optimiser)
        if self.trained and not shares and packed.fused is None and own.memory.must_recompute(own.tokens):
            packed.recompute()

    def _make_heads(self, packed: PackedModel, size: int, where: str) -> tuple[dict[str, ReadAt], nn.ModuleDict]:
        if self.traits.classifier:
            return dict(self.traits.heads), nn.ModuleDict({"reward": packed.causal.score.float()})
        with rng_scope(self.seed % 2**63, packed.device):  # custom heads may start at random
            places, heads = heads_of(self.kind, size, where)
        return places, heads.to(packed.device)

    def _make_weights(self, packed: PackedModel, dtype: torch.dtype) -> Weights:
        """All weights in the type that the model computes in. Heads and adapters stay float32."""
        inner = {} if self.shares else dict(packed.outer.named_parameters())
        own = {id(weight) for weight in inner.values()}
        heads = {f"heads.{name}": weight for name, weight in self.heads.named_parameters() if id(weight) not in own}
        exact_ids = {id(weight) for weight in self.heads.parameters()}
        adapted = has_adapters(packed.outer)
        if self.training is None:
            for weight in (*inner.values(), *heads.values()):
                weight.requires_grad_(False)
        trained = {name: weight for name, weight in (inner | heads).items() if weight.requires_grad}
        for weight in inner.values():
            if not weight.requires_grad and id(weight) not in exact_ids:
                weight.data = weight.data.to(dtype)
        exact = {name for name, weight in trained.items() if adapted or id(weight) in exact_ids}
        host = self.training is not None and self.training.optimiser.optimiser_place == "host"
        return Weights(trained.items(), dtype, exact, host)

    # -- scoring ------------------------------------------------------------------------------------------------------------------

    def outputs(self, batch: Batch) -> dict[str, Column]:
        """The output of each head, one number per turn or per response token, in the batch's order."""
        packed = self._packed(batch)
        found = self.scores(packed, heads=True)
        return {name: placed(found[name], order_of(packed, place), len(found[name])) for name, place in self.places.items()}

    def outputs_of(self, prompts: Texts, continuations: Texts) -> dict[str, Column]:
        """The same for any continuations of any prompts, token ids or texts. Heads that are read per token have all tokens in one array."""
        if not len(prompts) and not len(continuations):
            return {name: np.zeros(0, np.float32) for name in self.places}
        return self.scores(self._pairs(prompts, continuations), heads=True)

    def _packed(self, batch: Batch) -> Packed:
        if self.texts:
            raise TurnwiseError(
                f"model {self.name!r} reads texts alone (models.{self.name}.texts=true), and a batch holds the policy's token ids: "
                "give logprobs(…) or outputs_of(…) texts"
            )
        return super()._packed(batch)

    def _ids(self, prompt: Any, continuation: Any) -> tuple[Any, Any]:
        if self.texts and not isinstance(prompt, str):
            raise TurnwiseError(f"model {self.name!r} reads texts alone (models.{self.name}.texts=true), and was given token ids")
        return super()._ids(prompt, continuation)

    def scores(self, packed: Packed, *, temperature: float | None = None, **wanted: Any) -> dict[str, Column]:
        if self.traits.classifier and wanted.get("logprobs"):
            raise TurnwiseError(f"model {self.name!r} is a reward model: it has outputs(batch), and no log-probs")
        if wanted.get("heads") and not self.places:
            raise TurnwiseError(f"model {self.name!r} has no heads: its kind is {type(self.kind).__name__} (models.{self.name}.kind)")
        return super().scores(packed, temperature=temperature, **wanted)

    def _forward(
        self,
        part: Packed,
        temperature: float,
        *,
        logprobs: bool = False,
        hidden: ReadAt | None = None,
        layer: int = -1,
        heads: bool = False,
    ) -> dict[str, Tensor]:
        if not heads:
            return super()._forward(part, temperature, logprobs=logprobs, hidden=hidden, layer=layer)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.shares):
            states, outputs = self.packed.inside(lambda: self._states(part, temperature, logprobs))
        return outputs | self.heads_on(states, part)

    def heads_on(self, states_TH: Tensor, part: Packed) -> dict[str, Tensor]:
        """The output of each head, one number per turn or response token, from the hidden states of all tokens of a part."""
        outputs = {}
        for name, place in self.places.items():
            chosen = states_TH[to_device(places_of(part, place), states_TH.device)]
            outputs[name] = self.heads[name](chosen.to(next(self.heads[name].parameters()).dtype))[:, 0]
        return outputs

    def _states(self, part: Packed, temperature: float, logprobs: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """All hidden states of a part, and the log-probs of its response tokens if they are wanted."""
        states = self._hidden(part)
        source = torch.as_tensor(part.source, device=states.device)
        return states, {"logprob": self._logprobs(states[source], part, temperature)} if logprobs else {}

    # -- training -----------------------------------------------------------------------------------------------------------------

    def update(
        self,
        batch: Batch,
        loss: Loss | None = None,
        *,
        columns: Sequence[str] | Mapping[str, Any] = (),
        logprobs: bool | None = None,
    ) -> dict[str, float]:
        """Learn from a batch. Returns metrics: means over the optimiser steps.

        loss      a function of what the model predicts for a mini-batch (`Predictions`): a number with gradient, (number,
                  metrics), or None if there is nothing to learn from it. Default: the kind's own
        columns   names of the batch's columns that the loss reads, or arrays by such names
        logprobs  whether the loss reads log-probs; None: as the kind says
        """
        if self.training is None or self.optimiser is None:
            raise TurnwiseError(f"model {self.name!r} is frozen, so it cannot be updated: set models.{self.name}.trained=true")
        chosen = loss if loss is not None else self._own_loss()
        given = self._columns(batch, columns, loss is None)
        wanted = {"logprobs": self.traits.logprobs if logprobs is None else logprobs, "heads": bool(self.places)}
        packed, seed = self._packed(batch), derive(self.seed, f"update of model {self.name}", self.updates)
        self.budget.measure(self.optimiser)
        with computing(self.packed, training=True):
            epochs = range(self.training.epochs if len(packed) else 0)
            steps = [self._step(packed, batch, chosen, given, wanted, derive(seed, epoch)) for epoch in epochs]
        self.updates += 1
        names = dict.fromkeys(name for step in steps for name in step)
        means = {name: float(np.mean([step[name] for step in steps if name in step])) for name in names}
        return means | {"steps": float(sum(bool(step) for step in steps))}

    def _own_loss(self) -> Loss:
        if isinstance(self.kind, HasLoss):
            return self.kind.loss
        raise TurnwiseError(
            f"model {self.name!r}: its kind {type(self.kind).__name__} has no loss of its own: give one, update(batch, loss), or choose a "
            f"kind that has one (models.{self.name}.kind)"
        )

    def _columns(self, batch: Batch, given: Sequence[str] | Mapping[str, Any], own: bool) -> dict[str, NDArray[Any]]:
        names = [*given, *(self.traits.needs if own else ())]
        arrays = dict(given) if isinstance(given, Mapping) else {}
        for name in names:
            if name.partition(".")[0] not in LEVELS:
                raise TurnwiseError(f"model {self.name!r}: column {name!r} says no level; columns are named as turn.reward")
        return {name: np.asarray(arrays[name] if name in arrays else batch.column(name)) for name in names}

    def _step(
        self, part: Packed, batch: Batch, loss: Loss, columns: Mapping[str, NDArray[Any]], wanted: Mapping[str, bool], seed: int
    ) -> dict[str, float]:
        """One optimiser step on a mini-batch; no metrics if there was nothing to learn from."""
        assert self.optimiser is not None
        rows = Rows.of(part, batch.rollouts)
        tensors = chosen_columns(columns, rows, self.packed.device)

        def judged(found: Mapping[str, Tensor]) -> Judged:
            outputs = {name: value for name, value in found.items() if name != "logprob"}
            empty = torch.zeros(0, device=self.packed.device)
            judged_loss = loss(Predictions(found.get("logprob", empty), outputs, tensors, rows))
            return judged_loss if isinstance(judged_loss, tuple) else (judged_loss, {})

        value, metrics = self.budget(lambda tokens: self._gradient(part, tokens, judged, wanted, seed))
        if value is None:
            return {}
        step = self.optimiser.step(float(value), self.progress)
        known = {"loss": float(value), "grad_norm": step.grad_norm, "lr": step.lr, "skipped": float(not step.taken)}
        return known | {name: float(metric) for name, metric in metrics.items()}

    def _gradient(self, batch: Packed, tokens: int, judged: Judge, wanted: Mapping[str, bool], seed: int) -> Judged:
        """Gradients of a mini-batch on the weights; its loss and metrics."""
        ranks, decisions = self.ranks, self.budget.decisions
        if ranks is None and len(microbatches(batch, np.arange(len(batch)), tokens)) == 1:
            return _backward(judged(self._predict(batch, wanted, derive(seed, int(batch.turn_row[0])))), self.name)
        tokens_, turns = np.arange(len(batch.source)), np.arange(len(batch.turn_row))
        batch = batch.with_columns(**{INDEX: tokens_}).with_turn_columns(**{INDEX: turns})

        def predict(part: Packed) -> dict[str, Tensor]:
            return self._predict(part, wanted, derive(seed, int(part.turn_row[0])))  # both passes over a part draw the same random numbers

        with torch.no_grad():
            first = together(decisions, lambda: passes(self.packed, ranks, batch, tokens, predict, predict))
        share = {name: torch.cat([outputs[name] for outputs in first]).cpu().numpy() for name in first[0]} if first else {}
        everything = self.restored(batch, share, wanted)
        leaves = {name: torch.as_tensor(column, device=self.packed.device).requires_grad_() for name, column in everything.items()}
        value, metrics = _backward(judged(leaves), self.name)
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        if value is None:
            return value, metrics

        def pull(part: Packed) -> None:
            outputs = predict(part)
            per_token = {name: name == "logprob" or self.places.get(name) == "token" for name in gradients}
            index = {name: (part.columns if per_token[name] else part.turn_columns)[INDEX] for name in gradients}
            _pull(outputs, {name: gradient[index[name]] for name, gradient in gradients.items()})

        together(decisions, lambda: passes(self.packed, ranks, batch, tokens, pull, predict))
        if ranks is not None:
            sum_gradients(self.weights, ranks)
        return value, metrics

    def _predict(self, part: Packed, wanted: Mapping[str, bool], seed: int) -> dict[str, Tensor]:
        """A part through the model; dropout draws from the seed alone, so both passes over a part are the same."""
        self.budget.memory.prepare(len(part.ids))
        with rng_scope(seed % 2**63, self.packed.device):
            return self._forward(part, self.temperature, logprobs=wanted["logprobs"], heads=wanted["heads"])

    def step(self, loss: float, progress: float, norm: tuple[Tensor, float] | None = None) -> Step:
        """Move the weights by their gradients. `norm`: as of `Optimiser.step`."""
        assert self.optimiser is not None
        return self.optimiser.step(loss, progress, norm)

    # -- state --------------------------------------------------------------------------------------------------------------------

    @property
    def weights_by_name(self) -> dict[str, Tensor]:
        return ({} if self.shares else super().weights_by_name) | self._head_weights

    @property
    def _head_weights(self) -> dict[str, Tensor]:
        """Those of its own heads, by name; a classifier's head is part of the model."""
        return {f"heads.{name}": weight.detach() for name, weight in self.heads.named_parameters() if not self.traits.classifier}

    def follow(self, other: Scorer, share: float = 1.0) -> None:
        """Move the weights towards another model's: completely, or by a share, as target networks do. The optimiser keeps its state. A
        model that reads the policy's hidden states moves its heads alone."""
        source, own = other.weights_by_name, self._plain_targets()
        if self.shares:
            source = {name: weight for name, weight in source.items() if name.startswith("heads.")}
            if not source:
                raise TurnwiseError(
                    f"model {self.name!r} has no weights except its heads, and {other.name!r} has no heads that they could follow"
                )
        source |= {name: weight for name, weight in own.items() if name.startswith("heads.") and name not in source}
        check_names(f"model {self.name!r} follows {other.name!r}", source, own)
        with torch.no_grad():
            for name, weight in own.items():
                weight.data.lerp_(source[name].to(weight.device, weight.dtype), share)
        self.weights.publish()
        self.moved = True

    def _plain_targets(self) -> dict[str, Tensor]:
        """What `follow` writes to: the masters of trained weights, the weights themselves elsewhere; adapters are left alone."""
        inner: dict[str, Tensor] = {} if self.shares else dict(self.packed.causal.named_parameters())
        masters = {} if has_adapters(self.packed.outer) else self.weights.masters
        plain = {
            name.replace("base_layer.", ""): masters.get(name, weight).detach() for name, weight in inner.items() if "lora_" not in name
        }
        return plain | self._head_weights

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to continue exactly here: tensors (copies, on the CPU) and plain numbers. Frozen weights are kept only if
        they have moved."""
        groups: dict[str, Mapping[str, Tensor]] = {"weights": self.weights.tensors()}
        numbers: dict[str, Any] = {"updates": self.updates, "moved": self.moved, "frozen": "" if self.moved else self._fingerprint()}
        if self.optimiser is not None:
            groups["optimiser"], numbers["optimiser"] = self.optimiser.state()
        if self.moved:
            groups["frozen"] = self._frozen()
        if isinstance(self.kind, GivesState):
            numbers["kind"] = self.kind.state()
        tensors = {f"{group}/{name}": weight.to("cpu", copy=True) for group, own in groups.items() for name, weight in own.items()}
        return tensors, numbers

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. The model must have been made from the same weights and settings."""
        groups: dict[str, dict[str, Tensor]] = {"weights": {}, "optimiser": {}, "frozen": {}}
        for name, tensor in tensors.items():
            group, _, own = name.partition("/")
            groups[group][own] = tensor
        if not numbers["moved"] and numbers["frozen"] != self._fingerprint():
            raise TurnwiseError(
                f"model {self.name!r}: its frozen weights differ from those of the saved state. Was models.{self.name} changed?"
            )
        self.weights.load(groups["weights"])
        if numbers["moved"]:
            frozen = self._frozen()
            check_names(f"model {self.name!r}", groups["frozen"], frozen)
            for name, weight in frozen.items():
                weight.data.copy_(groups["frozen"][name])
        if self.optimiser is not None:
            self.optimiser.load_state(groups["optimiser"], numbers["optimiser"])
        if "kind" in numbers and isinstance(self.kind, TakesState):
            self.kind.load_state(numbers["kind"])
        self.updates, self.moved = int(numbers["updates"]), bool(numbers["moved"])

    def _frozen(self) -> dict[str, Tensor]:
        """The weights that no optimiser moves, by name; empty for a model that shares the policy's."""
        inner = {} if self.shares else dict(self.packed.outer.named_parameters())
        return {name: weight.detach() for name, weight in (inner | self._head_weights).items() if name not in self.weights.masters}

    def _fingerprint(self) -> str:
        return "" if self.shares else fingerprint(self.packed.outer)


def _backward(judged: Judged, name: str) -> Judged:
    """The gradient of a loss with respect to its inputs, and the detached loss."""
    value, metrics = judged
    if value is None:
        return judged
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
        raise TurnwiseError(
            f"model {name!r}: its loss is one number that depends on what the model predicts, or None where there is nothing to learn "
            f"from; not {str(value)[:80]}"
        )
    value.backward()
    return value.detach(), metrics


def _pull(outputs: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Propagate the gradients of some outputs into the weights."""
    names = [name for name in gradients if len(outputs[name])]
    if names:
        torch.autograd.backward([outputs[name] for name in names], [gradients[name] for name in names])


def heads_of(kind: Any, size: int, where: str) -> tuple[dict[str, ReadAt], nn.ModuleDict]:
    """Where each head of a kind is read, and the layers themselves."""
    traits = KindTraits.of(kind)
    for name, place in traits.heads.items():
        if place not in READ_AT or not name.isidentifier():
            raise TurnwiseError(f"{where}: heads are names with one of {', '.join(READ_AT)}, not {name!r}: {place!r}")

    make_head = traits.head or (lambda name, size: layered(size, traits.layers, traits.spread, derive(0, "head", name)))
    return dict(traits.heads), nn.ModuleDict({name: make_head(name, size) for name in traits.heads}).float()


def layered(size: int, layers: int, spread: float = 0.0, seed: int = 0) -> nn.Module:
    """A linear layer behind `layers` hidden ones with ReLU. It starts at zero: before it has learned, everything is worth 0. Or with normal
    weights of deviation `spread`."""
    generator = torch.Generator().manual_seed(derive(seed, "hidden layers") % 2**63)
    parts: list[nn.Module] = []
    for _ in range(layers):
        hidden = nn.Linear(size, size)
        nn.init.normal_(hidden.weight, std=(2 / size) ** 0.5, generator=generator)
        nn.init.zeros_(hidden.bias)
        parts += [hidden, nn.ReLU()]
    last = nn.Linear(size, 1)
    nn.init.zeros_(last.weight)
    if spread > 0:
        nn.init.normal_(last.weight, std=spread, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(last.bias)
    return nn.Sequential(*parts, last) if parts else last


def together(decisions: Decisions, work: Callable[[], T]) -> T:
    """The result of the work. If one process runs out of memory, all of them report that."""
    done, failed = list[T](), ""
    try:
        done = [work()]
    except torch.OutOfMemoryError as error:
        failed = str(error) or "no memory left"
    if decisions.retry(bool(failed)):
        raise torch.OutOfMemoryError(failed or "in another process")
    return done[0]


def sum_gradients(weights: Weights, ranks: Ranks) -> None:
    """The gradients on whole weights, summed over all processes. A weight without a gradient anywhere gets none."""
    names, own = list(weights.masters), weights.gradients()
    somewhere = np.any(ranks.gather([name in own for name in names]), axis=0)
    for name, some in zip(names, somewhere.tolist(), strict=True):
        if some:
            gradient = own[name] if name in own else torch.zeros_like(weights.masters[name], device=weights.parameters[name].device)
            weights.put_gradient(name, gradient)
            ranks.sum_([gradient])
