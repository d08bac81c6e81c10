"""What engines in this process need to know about a model, and how they load new weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from turnwise.util.errors import TurnwiseError


def longest(model: Any, given: int | None) -> int:
    """How many tokens a sequence may have: the given number, or what the model was made for."""
    if given is not None:
        return given
    made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if made_for is None:
        raise TurnwiseError(f"engine: {type(model).__name__} does not say how many tokens it was made for: give max_length")
    return int(made_for)


def inner_model(model: Any) -> Any:
    """The model inside its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def active_adapters(layer: Any) -> list[tuple[Tensor, Tensor, float]]:
    """The LoRA factors that are active on a layer now, [rank, in] and [out, rank], with their scale."""
    if not hasattr(layer, "lora_A") or layer.merged or layer.disable_adapters:
        return []
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    return [(layer.lora_A[name].weight, layer.lora_B[name].weight, float(layer.scaling[name])) for name in names]


def forward_parameters(model: Any) -> frozenset[str]:
    """The names that the model's forward takes; for a wrapped model (LoRA), those of the inner one."""
    inner = inner_model(model)
    if reason := lacks_cache(type(inner)):
        raise TurnwiseError(f"engine: {reason}")
    return frozenset(inspect.signature(inner.forward).parameters)


def lacks_cache(kind: Any) -> str | None:
    """Why models of a class cannot be sampled by the transformers engine; None if they can."""
    if "past_key_values" in inspect.signature(kind.forward).parameters:
        return None
    return (
        f"{kind.__name__} takes no past_key_values, and the transformers engine needs a model with such a cache: use another model, or the "
        "vLLM engine (engine.name=vllm) if vLLM serves it"
    )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout inside the block; afterwards every module is back in its mode."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def load_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place, by the names of its state. Weights that are tied to others may be missing. Nothing is changed
    if a name or a shape is wrong."""
    state = model.state_dict()
    if unknown := [name for name in weights if name not in state]:
        raise TurnwiseError(f"engine: the model has no weights {', '.join(unknown[:3])!r} ({len(unknown)} of {len(weights)} are unknown)")
    written = {state[name].data_ptr() for name in weights}
    if missing := [name for name, tensor in state.items() if name not in weights and tensor.data_ptr() not in written]:
        raise TurnwiseError(f"engine: {len(missing)} of the model's weights are missing in what was published, among them {missing[0]!r}")
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise TurnwiseError(
                f"engine: {name!r} has the shape {tuple(state[name].shape)} in the model, and {tuple(tensor.shape)} was published"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)
