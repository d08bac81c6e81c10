"""A further model that several processes train together.

Every process has the whole model. Each computes the log-probs and outputs of its share of a mini-batch; all get all of them and evaluate
the same loss; each propagates the gradient of its share into the weights, and the gradients are summed. The sums are bitwise identical
everywhere, and so are the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from turnwise.learn.decide import Decisions
from turnwise.learn.optimiser import Weights
from turnwise.learn.packing import Packed
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.ranks.shares import passes
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.learn.further.model import FurtherModel

T = TypeVar("T")
PLACE = "place in the mini-batch"


def shared_gradient(
    model: FurtherModel, ranks: Ranks, batch: Packed, tokens: int, judge: Callable[[Mapping[str, Tensor]], Any], wanted: Any, seed: int
) -> tuple[Tensor | None, Mapping[str, Any]]:
    """Gradients of a mini-batch on the weights; its loss and metrics."""
    decisions = model.budget.decisions
    tokens_, turns = np.arange(len(batch.source)), np.arange(len(batch.turn_row))
    batch = batch.with_columns(**{PLACE: tokens_}).with_turn_columns(**{PLACE: turns})

    def said(part: Packed) -> dict[str, Tensor]:
        return model.said(part, wanted, derive(seed, int(part.turn_row[0])))  # both passes over a part draw the same random numbers

    with torch.no_grad():
        first = together(decisions, lambda: passes(model.packed, ranks, batch, tokens, "score", said, said))
    own = {name: torch.cat([found[name] for found in first]).cpu().numpy() for name in first[0]} if first else {}
    everything = model.restored(batch, own, wanted)
    leaves = {name: torch.as_tensor(column, device=model.packed.device).requires_grad_() for name, column in everything.items()}
    value, metrics = judge(leaves)
    slopes = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    if value is None:
        return value, metrics

    def pull(part: Packed) -> None:
        found = said(part)
        names = [name for name in slopes if len(found[name])]
        per_token = {name: name == "logprob" or model.places.get(name) == "token" for name in names}
        places = {name: (part.columns if per_token[name] else part.turn_columns)[PLACE] for name in names}
        if names:
            torch.autograd.backward([found[name] for name in names], [slopes[name][places[name]] for name in names])

    together(decisions, lambda: passes(model.packed, ranks, batch, tokens, "score", pull, said))
    sum_gradients(model.weights, ranks)
    return value, metrics


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
