"""Low-rank adapters through peft, and their frozen base in 4 bits through bitsandbytes.

The base model stays as it is and doubles as the reference; the adapters are float32. With `pack_base`, linear layers of attention and MLP
store their frozen weights as 4-bit codes (NF4) with a scale per block of 64, which takes 0.52 bytes per weight instead of 2. Layers are
converted one at a time on the device where they will compute. A pass unpacks one layer at a time. Learner and engine read the same codes,
so they have the same policy. Embeddings, norms and the output layer stay as they are, and so do experts that are not linear layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from turnwise.engines.fourbit import is_packed, library
from turnwise.learn.device import rng_scope
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
    with rng_scope(seed % 2**63, gpu), warnings.catch_warnings():
        config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=names)
        warnings.filterwarnings("ignore", r"`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft asks by the old name
        adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def merged(model: nn.Module, adapters: str) -> Any:
    """The model with the adapters of a folder, or of a name on a hub, merged into its weights."""
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra(f"starting from LoRA adapters ({adapters})", "lora") from None
    try:
        return PeftModel.from_pretrained(model, adapters).merge_and_unload()
    except (OSError, ValueError, RuntimeError) as error:
        raise TurnwiseError(f"model {adapters}: its adapters do not fit their base: {' '.join(str(error).split())[:300]}") from error


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


def pack_base(model: Any, device: str | torch.device, dtype: torch.dtype) -> Any:
    """The model on its device, with 4-bit weights in its inner linear layers. `dtype` is what it computes in."""
    bits = library()
    output = model.get_output_embeddings()
    inner = [(name, module) for name, module in model.named_modules() if type(module) is nn.Linear and module is not output]
    if not inner:
        raise TurnwiseError(
            f"{type(model).__name__} has no inner linear layers, so its base cannot be stored in 4 bits: set model.lora.base=full"
        )
    for name, module in inner:
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, _packed(bits, module, torch.device(device), dtype))
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    model.is_loaded_in_4bit = True  # peft asks for this name
    return model.to(device)


def _packed(bits: Any, module: nn.Linear, device: torch.device, dtype: torch.dtype) -> Any:
    layer = bits.nn.Linear4bit(
        module.in_features, module.out_features, module.bias is not None, compute_dtype=dtype, quant_type="nf4", device="meta"
    )
    layer.support_avx512bf16_for_cpu = False  # it would rearrange the codes, which the engine also reads
    layer.bias = module.bias
    packed = bits.nn.Params4bit(module.weight.data.to(dtype), requires_grad=False, quant_type="nf4", module=layer)
    try:
        layer.weight = packed.to(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a library raises that was built for another device or version
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TurnwiseError(
            f"bitsandbytes {getattr(bits, '__version__', '')} cannot store weights in 4 bits on {device}: {reason}. "
            "Install a version for this device, or set model.lora.base=full"
        ) from error
    if not is_packed(layer):
        raise TurnwiseError(f"bitsandbytes stores nothing in 4 bits on {device}: set model.lora.base=full")
    return layer.train(module.training)


def has_packed(model: nn.Module) -> bool:
    """Whether any layer of a model stores its weight in 4 bits."""
    return any(is_packed(module) for module in model.modules())
