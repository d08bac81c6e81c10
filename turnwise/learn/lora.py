"""Low-rank adapters through peft. The base model stays as it is and doubles as the reference; the adapters are float32."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from turnwise.learn.chance import drawing_from
from turnwise.util.errors import MissingExtra, TurnwiseError


def add_lora(
    model: nn.Module,
    *,
    rank: int = 16,
    alpha: float = 32.0,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    seed: int = 0,
) -> Any:
    """The model with adapters on it, of which only the adapters are trained. They start at zero: nothing changes until the first step.

    alpha: the adapters' output counts alpha / rank. dropout: on their input. targets: names of the linear layers that get one; None: all
    linear layers of attention and MLP, that is, all but the output layer. In a mixture of experts, those of attention.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtra("training with LoRA", "lora") from None
    if rank < 1 or not alpha > 0 or not 0 <= dropout < 1:
        raise TurnwiseError(f"lora: rank is at least 1, alpha above 0 and dropout in [0, 1), not {rank=}, {alpha=}, {dropout=}")
    names = _targets(model, targets)
    gpu = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    with drawing_from(seed % 2**63, gpu), warnings.catch_warnings():
        config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=names)
        warnings.filterwarnings("ignore", r"`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft asks by the old name
        adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


EXPERTS = {"gate_up_proj": {"gate_proj", "up_proj"}, "down_proj": {"down_proj"}}  # their matrices, by the names that linear layers have


def _targets(model: Any, wanted: Sequence[str] | None) -> list[str]:
    """Names of layers, checked: a name that matches nothing is an error, not a layer that silently does not learn."""
    output = model.get_output_embeddings()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"}
    inner = sorted({name.rsplit(".", 1)[-1] for name, module in layers.items() if module is not output})
    stacked = {name.rsplit(".", 1)[-1] for name, weight in model.named_parameters() if weight.ndim == 3 and ".experts." in name}
    taken = set[str]().union(*(EXPERTS.get(name, set()) for name in stacked))  # peft would put these adapters on the experts
    inner = [name for name in inner if name not in taken]
    for name in wanted or ():
        if name in taken:
            raise TurnwiseError(
                f"lora: {name!r} is a part of this model's experts, which get no adapter, and neither do layers of the same name next to "
                f"them. Known: {', '.join(inner)}"
            )
        if name not in inner:
            raise TurnwiseError(
                f"lora: no linear layer inside the model is named {name!r} (the output layer cannot have an adapter). "
                f"Known: {', '.join(inner)}"
            )
    return inner if wanted is None else list(wanted)
