"""The frozen base of adapters in 4 bits, through bitsandbytes.

Linear layers of attention and MLP store their weights as 4-bit codes (NF4) with a scale per block of 64, which takes 0.52 bytes per weight
instead of 2. Layers are converted one at a time on the device where they will compute. A pass unpacks one layer at a time. Learner and
engine read the same codes, so they have the same policy. Embeddings, norms and the output layer stay as they are, and so do experts that
are not linear layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from turnwise.engines.fourbit import is_packed, library
from turnwise.util.errors import TurnwiseError


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
