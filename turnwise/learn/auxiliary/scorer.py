"""What every model of a run can do: log-probs of any continuation of any prompt, of a batch's responses, and hidden states. The learner
scores the policy and the reference with it too.

Sequences follow one another without padding, only the positions that predict a wanted token reach the output layer, and a batch that does
not fit into memory is tried again with half the tokens at a time. Log-probs are at the sampler's temperature unless another one is given,
so that they compare with those of the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn.device import to_device
from turnwise.learn.forward import PackedModel, has_adapters
from turnwise.learn.logprobs import token_logprobs
from turnwise.learn.memory import Budget
from turnwise.learn.offload import OffloadedModel
from turnwise.learn.packing import Packed, microbatches, pack
from turnwise.learn.parallel import workers_for
from turnwise.learn.ranks.export import plain_weights_of
from turnwise.learn.ranks.group import Ranks, put
from turnwise.learn.ranks.sharding import passes
from turnwise.learn.ranks.sharding import restored as from_shares
from turnwise.learn.weights import check_names
from turnwise.util.errors import TurnwiseError

Column = NDArray[Any]
ReadAt = Literal["turn", "turn_end", "token"]
Texts = Sequence[str] | Sequence[Sequence[int]]


class Scorer:
    """A model that can score. `budget` says how many tokens it computes at once; `active` is open while it computes. `masters` are float32
    copies of some weights. With `ranks`, every process scores a share of the sequences, and all get all results."""

    trained = False
    places: Mapping[str, ReadAt] = {}  # where each head is read, if the model has heads

    def __init__(
        self,
        name: str,
        packed: PackedModel,
        tokenizer: Any,
        budget: Budget,
        *,
        temperature: float = 1.0,
        active: Callable[[], AbstractContextManager[None]] = nullcontext,
        masters: Mapping[str, Tensor] | None = None,
        ranks: Ranks | None = None,
    ):
        self.name, self.packed, self.tokenizer, self.temperature = name, packed, tokenizer, temperature
        self.budget, self._active, self._masters, self.ranks = budget, active, masters, ranks

    def logprobs(self, prompts: Texts, continuations: Texts, *, temperature: float | None = None) -> list[Column]:
        """The log-probs of each continuation's tokens after its prompt. Both are token ids, or both texts, which this model's tokenizer
        then encodes."""
        if not len(prompts) and not len(continuations):
            return []
        packed = self._pairs(prompts, continuations)
        return np.split(self.scores(packed, logprobs=True, temperature=temperature)["logprob"], packed.token_offsets[1:-1])

    def score(self, batch: Batch, *, temperature: float | None = None) -> Column:
        """The log-prob of every response token of a batch under this model, in the batch's token order."""
        packed = self._packed(batch)
        return placed(self.scores(packed, logprobs=True, temperature=temperature)["logprob"], packed.index, len(packed.source))

    def hidden(self, batch: Batch, at: ReadAt = "turn", *, layer: int = -1) -> Column:
        """The last hidden state of every turn, [turns, size]: at its last prompt token, or with at="turn_end" at its last token. With
        at="token", one per response token: at the token before it. `layer` -2: what the layer before the last one gave, and so on."""
        packed = self._packed(batch)
        states = self.scores(packed, hidden=at, layer=layer)["hidden"]
        return placed(states, order_of(packed, at), len(states))

    @property
    def weights_by_name(self) -> dict[str, Tensor]:
        """The weights as those of a plain model, detached, by name; with adapters: as if they were merged."""
        return plain_weights(self.packed, self._masters)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _packed(self, batch: Batch) -> Packed:
        packed = pack(batch.trajectories, batch.rollouts)
        rows = len(batch.rollouts)
        if len(packed.turn_row) != rows:
            missing = int(np.setdiff1d(np.arange(rows), packed.turn_row)[0])
            raise TurnwiseError(f"model {self.name!r}: the turn of row {missing} has no prompt ids, so the model cannot read it")
        return packed

    def _pairs(self, prompts: Texts, continuations: Texts) -> Packed:
        if len(prompts) != len(continuations):
            raise TurnwiseError(f"model {self.name!r}: {len(prompts)} prompts and {len(continuations)} continuations; give one for each")
        pairs = [self._ids(prompt, continuation) for prompt, continuation in zip(prompts, continuations, strict=True)]
        turns = [Turn(anchor=0, prompt_ids=prompt, response_ids=continuation) for prompt, continuation in pairs]
        packed = pack([Trajectory(0, number, turns=[turn]) for number, turn in enumerate(turns)])
        if len(packed) != len(pairs):
            empty = next(number for number, (prompt, _) in enumerate(pairs) if not len(prompt))
            raise TurnwiseError(f"model {self.name!r}: prompt {empty} is empty, and the first token needs something to follow from")
        return packed

    def _ids(self, prompt: Any, continuation: Any) -> tuple[Any, Any]:
        if isinstance(prompt, str) != isinstance(continuation, str):
            raise TurnwiseError(f"model {self.name!r}: a prompt and its continuation are both texts or both token ids")
        if not isinstance(prompt, str):
            return prompt, continuation
        start = list(self.tokenizer(prompt)["input_ids"])
        return start, list(self.tokenizer(continuation, add_special_tokens=False)["input_ids"])

    def scores(self, packed: Packed, *, temperature: float | None = None, **wanted: Any) -> dict[str, Column]:
        """The wanted numbers for all tokens or turns of `packed`, in its order."""
        warmth = self.temperature if temperature is None else temperature

        def one(part: Packed) -> dict[str, Tensor]:
            return self._forward(part, warmth, **wanted)

        def work(tokens: int) -> list[dict[str, Tensor]]:
            if not len(packed):
                return [one(packed)]
            workers = workers_for(self.packed, self.ranks)
            if workers == 1:
                return passes(self.packed, self.ranks, packed, tokens, one, one)
            parts = microbatches(packed, np.arange(len(packed)), tokens)
            with ThreadPoolExecutor(workers) as pool:
                return list(pool.map(torch.no_grad()(lambda part: one(packed.take(part))), parts))

        with torch.no_grad(), computing(self.packed, training=False, active=self._active):
            parts = self.budget(work)
        share = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]} if parts else {}
        return share if self.ranks is None or not len(packed) else self.restored(packed, share, wanted)

    def restored(self, packed: Packed, share: Mapping[str, Column], wanted: Mapping[str, Any]) -> dict[str, Column]:
        """The numbers of all sequences from those of this process's."""
        read: dict[str, ReadAt] = {"logprob": "token"} if wanted.get("logprobs") else {}
        read |= {"hidden": wanted["hidden"]} if wanted.get("hidden") else {}
        read |= self.places if wanted.get("heads") else {}
        offsets = {name: packed.token_offsets if place == "token" else packed.turn_offsets for name, place in read.items()}
        return from_shares(self.ranks, packed, share, offsets)

    def _forward(
        self, part: Packed, temperature: float, *, logprobs: bool = False, hidden: ReadAt | None = None, layer: int = -1
    ) -> dict[str, Tensor]:
        """Log-probs of the response tokens of a part, or hidden states."""
        return self.packed.inside(lambda: self._inside(part, temperature, logprobs, hidden, layer))

    def _inside(self, part: Packed, temperature: float, logprobs: bool, hidden: ReadAt | None, layer: int) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        if logprobs:
            outputs["logprob"] = self._logprobs(self._hidden(part, part.source), part, temperature)
        if hidden is not None:
            states = self._hidden(part, layer=layer)[torch.as_tensor(places_of(part, hidden), device=self.packed.device)]
            outputs["hidden"] = states.to(torch.promote_types(states.dtype, torch.float32))
        return outputs

    def _logprobs(self, states: Tensor, part: Packed, temperature: float) -> Tensor:
        """Log-probs of the response tokens from the hidden states that predict them."""
        target, chunk = to_device(part.target, states.device), self.budget.memory.rows_of_logits()
        return token_logprobs(states, self.packed.head, target, temperature=temperature, chunk=chunk)[0]

    def _hidden(self, part: Packed, places: Any = None, layer: int = -1) -> Tensor:
        if not len(part):
            size = self.packed.causal.config.get_text_config().hidden_size
            return torch.zeros(0, size, dtype=self.packed.causal.get_input_embeddings().weight.dtype, device=self.packed.device)
        chosen = None if places is None else to_device(places, self.packed.device)
        return self.packed.hidden(part, chosen, layer) if layer != -1 else self.packed.hidden(part, chosen)


class Reference:
    """The frozen policy that KL is measured against: a copy of the model, on its device or in host memory, or, with adapters, the model
    with its adapters switched off. `policy` is the packed model to score with, inside `active()`. `shares_model`:
    it is the policy without its adapters, and has no weights of its own."""

    def __init__(self, policy: PackedModel, model: nn.Module | None = None, dtype: torch.dtype | None = None, host: bool = False):
        """`model` is a custom reference; without it, a copy of the current policy. `dtype` is what it computes in; None: as the policy.
        `host`: its weights are in host memory, and come to the device while it scores."""
        self.shares_model = model is None and has_adapters(policy.outer)
        self._offloaded: OffloadedModel | None = None
        self.policy = policy
        if self.shares_model:
            return
        parameter = next(policy.causal.parameters())
        dtype = dtype or parameter.dtype
        frozen = (model if model is not None else copy.deepcopy(policy.causal)).requires_grad_(False).eval()
        if host:
            self._offloaded = OffloadedModel(frozen, parameter.device, dtype)
        else:
            frozen = frozen.to(parameter.device)
            for own in frozen.parameters():
                own.data = own.data.to(dtype)
        with self.active():
            self.policy = policy.like(frozen)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Open while scoring: adapters are off and come back afterwards; weights in host memory come to the device."""
        if self.shares_model:
            with self.policy.outer.disable_adapter():
                yield
        elif self._offloaded is not None:
            with self._offloaded.active():
                try:
                    yield
                finally:
                    if self.policy.fused is not None:  # it would keep the weights in memory, which will be elsewhere the next time
                        self.policy.fused.release()
        else:
            yield

    def tensors(self) -> dict[str, Tensor]:
        """The copy's weights; empty if it shares the model's."""
        return {} if self.shares_model else {name: tensor.detach() for name, tensor in self.policy.causal.named_parameters()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load these weights."""
        own = self.tensors()
        check_names("reference", tensors, own)
        for name, tensor in own.items():
            put(tensor, tensors[name])

    def follow(self, policy: PackedModel) -> None:
        """From now on the reference is the current policy (after a warm start, for example)."""
        if self.shares_model:
            raise TurnwiseError(
                "with adapters the reference is the base model, which cannot follow: save the model merged and start a new learner from it"
            )
        self.load({name: tensor.detach() for name, tensor in policy.causal.named_parameters()})


@contextmanager
def computing(packed: PackedModel, training: bool, active: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
    """Inside, a model computes, in training mode or not, unless our own layers run it, for which both are the same."""
    before = packed.outer.training
    changes = training != before and packed.fused is None
    if changes:
        packed.outer.train(training)
    try:
        with active(), packed.attention():
            yield
    finally:
        if changes:
            packed.outer.train(before)


def places_of(part: Packed, at: ReadAt) -> NDArray[np.int64]:
    """The index in `part.ids` that each turn or response token is read at."""
    if at == "token":
        return part.source
    if at == "turn":
        return part.turn_source
    size = int(part.turn_row.max(initial=-1)) + 1
    return part.turn_source + np.bincount(part.turn, minlength=size)[part.turn_row]  # and the response tokens of each turn


def order_of(packed: Packed, at: ReadAt) -> NDArray[np.int64]:
    """The position of each turn or response token of `packed` in the batch."""
    return packed.index if at == "token" else packed.turn_row


def placed(values: Column, index: NDArray[np.int64], size: int) -> Column:
    """A column in the batch's order from values in the packed one."""
    column = np.zeros((size, *values.shape[1:]), values.dtype)
    column[index] = values
    return column


def plain_weights(packed: PackedModel, exact: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights of a model as those of one without adapters. `exact`: float32 masters by their names in the outer model."""
    if packed.sharded is not None or has_adapters(packed.outer):
        return dict(plain_weights_of(packed, torch.float32))
    masters = exact or {}
    return {name: masters.get(name, weight).detach() for name, weight in packed.causal.named_parameters()}
