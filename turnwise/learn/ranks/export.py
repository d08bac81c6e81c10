"""Whole models from sharded ones: weights one after another for an engine, a plain copy, a Hugging Face folder.

All processes call these functions together, and every weight is whole on one device for a moment only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.engines.fourbit import dense
from turnwise.learn.forward import PackedModel, has_adapters
from turnwise.learn.ranks.group import Ranks, whole
from turnwise.learn.saving import write_model, write_with
from turnwise.util.errors import TurnwiseError


def plain_weights_of(policy: PackedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Name and weight of a model without adapters, in the order of its layers; adapters are merged into a copy. A tied weight comes
    once."""
    for name, weight in policy.causal.named_parameters():
        if "lora_" in name:
            continue
        full = dense(whole(weight)).detach()
        owner, adapted, _ = name.rpartition(".base_layer.weight")
        if adapted:
            full = _merged(policy.causal.get_submodule(owner), full)
        yield name.replace("base_layer.", ""), full.to(dtype)


def _merged(layer: Any, base: Tensor) -> Tensor:
    """A layer's weight plus the product of its adapters."""
    total = base.float()
    for adapter in layer.active_adapters:
        down, up = whole(layer.lora_A[adapter].weight).detach(), whole(layer.lora_B[adapter].weight).detach()
        change = (up.float() @ down.float()) * layer.scaling[adapter]
        total = total + (change.t() if getattr(layer, "fan_in_fan_out", False) else change)
    return total


def trained_weights_of(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights that are trained, whole, under their names in the model; adapters are float32."""
    exact = has_adapters(model)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            full = whole(weight).detach()
            yield name, full if exact else full.to(dtype)


def plain_model(policy: PackedModel, dtype: torch.dtype, keep: bool = True, device: Any = None) -> Any:
    """A separate model without adapters and not sharded. `keep` false: only take part, and return None."""
    with torch.device("meta"):
        model: Any = type(policy.causal)(copy.deepcopy(policy.causal.config)) if keep else None
    weights = {}
    for name, weight in plain_weights_of(policy, dtype):
        if keep:
            weights[name] = weight.to(device or policy.device, copy=True)
    if not keep:
        return None
    strange = model.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    if strange:
        raise TurnwiseError(f"{type(model).__name__}: its configuration makes a model without {strange[0]!r}, so it cannot be copied")
    model.tie_weights()
    for name, buffer in policy.causal.named_buffers():
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner)._buffers[own] = buffer.detach().to(device or buffer.device, copy=True)
    return model.eval()


def write_sharded(
    policy: PackedModel,
    ranks: Ranks,
    dtype: torch.dtype,
    folder: Path,
    merged: bool,
    tokenizer: Any = None,
) -> Path:
    """The model as a Hugging Face folder, written by the first process. If that fails, all raise the error."""
    first = ranks.rank == 0
    if merged or not has_adapters(policy.outer):
        model = plain_model(policy, dtype, keep=first, device="cpu")

        def write() -> Path:
            return write_model(model, folder, True, tokenizer)
    else:
        adapters = {name: weight.cpu() if first else None for name, weight in trained_weights_of(policy.outer, dtype)}

        def write() -> Path:
            return write_with(lambda temporary: policy.outer.save_pretrained(temporary, state_dict=adapters), folder, tokenizer)

    return ranks.by_first(write)
