"""Passes through a packed model, with its hidden states and gradients."""

from __future__ import annotations

from typing import Any

import torch
from learn_cases import gradients

from turnwise.learn import add_lora
from turnwise.learn.forward import PackedModel


def run(policy: PackedModel, packed: Any, places: Any = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states, and the gradients of a fixed weighting of them."""
    policy.causal.zero_grad()
    with policy.attention():
        hidden = policy.hidden(packed, places)
        weighting = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
        (hidden * weighting).sum().backward()
    return hidden.detach(), gradients(policy.causal)


def adapted(model: Any, rank: int = 3, **more: Any) -> Any:
    """Adapters that add something: B is not zero."""
    found = add_lora(model, rank=rank, alpha=5.0, **more)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return found
