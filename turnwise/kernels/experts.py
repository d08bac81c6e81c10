"""Mixtures of experts: a router sends every token through a few of many MLPs.

Tokens are sorted by expert, so that the experts' products are one grouped product for all of them. On a GPU that is one kernel that reads
the borders of the groups there: the host never waits for them, and a decode step can be captured. On a CPU it is a loop over the experts
that have tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


@dataclass(frozen=True, slots=True)
class Routing:
    """Which expert reads which token: one row per token and chosen expert, sorted by expert."""

    order: Tensor  # the rows, as places in the list of (token, choice)
    tokens: Tensor  # the token of each row
    offsets: Tensor  # int32: where the rows of each expert end
    weights: Tensor  # [tokens, choices]: how much each choice counts


@dataclass(frozen=True, slots=True)
class Experts:
    """The router and the experts of one layer, as the engine reads them."""

    router: Tensor
    gate_up: Tensor  # [experts, 2 × middle, hidden]
    down: Tensor  # [experts, hidden, middle]
    choices: int  # how many experts read a token
    normed: bool  # whether their weights add up to 1

    @classmethod
    def of(cls, block: Any, hold: Callable[[Tensor], Tensor]) -> Experts:
        """Those of a module. `hold` gives a parameter in the dtype that is computed in."""
        experts, gate = block.experts, block.gate
        return cls(hold(gate.weight), hold(experts.gate_up_proj), hold(experts.down_proj), int(gate.top_k), bool(gate.norm_topk_prob))

    def route(self, x: Tensor) -> Routing:
        """The experts of every token, rounded as transformers rounds them."""
        chances = linear(x, self.router).softmax(-1, dtype=torch.float32)
        weights, chosen = chances.topk(self.choices, dim=-1)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        return routing(chosen, weights.to(x.dtype), len(self.router))

    def __call__(self, x: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
        """The experts' outputs for every token. `activate` takes gate and up together."""
        plan = self.route(x)
        active = activate(grouped(x[plan.tokens], self.gate_up, plan.offsets))
        return gathered(grouped(active, self.down, plan.offsets), plan)


def routing(chosen: Tensor, weights: Tensor, experts: int) -> Routing:
    """Sort (token, choice) by expert; nothing here waits for a GPU."""
    expert, order = chosen.flatten().sort(stable=True)
    offsets = torch.searchsorted(expert, torch.arange(experts, device=expert.device), right=True)
    return Routing(order, order // chosen.shape[1], offsets.to(torch.int32), weights)


def gathered(rows: Tensor, plan: Routing) -> Tensor:
    """The weighted sum of the experts' rows, for every token."""
    back = torch.empty_like(rows).index_copy_(0, plan.order, rows).view(*plan.weights.shape, -1)
    return (back * plan.weights[..., None]).sum(1)


def grouped(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Every group of rows times its own weight, [groups, out, in]."""
    if rows.is_cuda:
        product: Tensor = torch.nn.functional.grouped_mm(rows, weight.transpose(-2, -1), offs=offsets)
        return product
    out = rows.new_empty(len(rows), weight.shape[1])
    for group, start, end in filled(offsets):
        torch.mm(rows[start:end], weight[group].t(), out=out[start:end])
    return out


def filled(offsets: Tensor) -> list[tuple[int, int, int]]:
    """The groups that have rows: number, first row, end. It waits for a GPU."""
    ends = offsets.tolist()
    return [(group, start, end) for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)) if end > start]
