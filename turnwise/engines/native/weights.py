"""The learner's own parameters, as the engine reads them.

There is no second copy of the weights. Layers that read the same input (query, key and value; gate and up) run as one matrix product, and
for that their parameters must be contiguous in memory: they are moved there once and stay parameters of the module, with the same values,
the same identity and their own gradients. An optimiser that updates them in place updates the engine at the same time. If something has
moved a parameter since (a load, a change of device), `Weights.update` notices and moves it back.

Two things are copies, both made again by `update`: LoRA adapters (small: stacked, scaled and cast, then applied on the fly next to the
untouched base weights), and everything if the engine is asked to compute in another dtype than the module has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.util.errors import TurnwiseError

FAMILIES = ("llama", "qwen2", "qwen3")
GPU_HEADS = (16, 32, 64, 128, 256)
ROPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the sequence length


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    middle: int
    vocabulary: int
    eps: float
    longest: int

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.heads // self.kv_heads


class Linear:
    """Linear layers that read the same input, as one: a weight, a bias or none, and LoRA factors or none."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype):
        self._modules, self._dtype = modules, dtype
        self.weight: Tensor
        self.bias: Tensor | None = None
        self.down: Tensor | None = None  # [ranks, in]
        self.up: Tensor | None = None  # [out, ranks]: blocks on the diagonal, scaled
        self.update()

    def update(self) -> bool:
        """Read the parameters again. Returns whether any of the tensors has been replaced."""
        plain = [_base(module) for module in self._modules]
        before = [None if t is None else t.data_ptr() for t in (*self._tensors(),)]
        self.weight = _joined([layer.weight for layer in plain], self._dtype, getattr(self, "weight", None))
        biases = [layer.bias for layer in plain if layer.bias is not None]
        self.bias = _joined(biases, self._dtype, self.bias) if biases else None
        self._update_adapters()
        return before != [None if t is None else t.data_ptr() for t in self._tensors()]

    def _tensors(self) -> tuple[Tensor | None, ...]:
        return getattr(self, "weight", None), self.bias, self.down, self.up

    def _update_adapters(self) -> None:
        downs, blocks, rows = [], [], 0
        for module in self._modules:
            out = _base(module).weight.shape[0]
            for down, up, scale in _adapters(module):
                downs.append(down.detach().to(self._dtype))
                blocks.append((rows, (up.detach().float() * scale).to(self._dtype)))
            rows += out
        if not downs:
            self.down = self.up = None
            return
        down = torch.cat(downs)
        up = down.new_zeros(rows, len(down))
        column = 0
        for row, block in blocks:
            up[row : row + len(block), column : column + block.shape[1]] = block
            column += block.shape[1]
        if self.down is not None and self.up is not None and self.down.shape == down.shape:
            self.down.copy_(down)  # in place: a captured graph reads these
            self.up.copy_(up)
        else:
            self.down, self.up = down, up

    def __call__(self, x: Tensor) -> Tensor:
        out = nn.functional.linear(x, self.weight, self.bias)
        if self.down is not None and self.up is not None:
            out.addmm_(nn.functional.linear(x, self.down), self.up.t())
        return out

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + this layer's output."""
        out = torch.addmm(residual, x, self.weight.t())
        if self.bias is not None:
            out += self.bias
        if self.down is not None and self.up is not None:
            out.addmm_(nn.functional.linear(x, self.down), self.up.t())
        return out


@dataclass(slots=True)
class Layer:
    """One layer's weights."""

    before_attention: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    before_mlp: Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class Weights:
    """All weights of one model in the order of their use. `dtype` is what to compute in: by default what the weights are."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None):
        if reason := supports(model):
            raise TurnwiseError(f"the native engine cannot run this model: {reason}")
        self.model = _causal(model)
        self.dtype: torch.dtype = dtype or self.model.lm_head.weight.dtype
        self.shape = shape_of(self.model.config)
        self._read()

    def _read(self) -> None:
        inner, head = self.model.model, self.model.lm_head
        self.device: torch.device = head.weight.device
        self._copies: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self.layers = [self._layer(layer) for layer in inner.layers]
            self.embedding = self._hold(inner.embed_tokens.weight)
            self.norm = self._hold(inner.norm.weight)
            self.head = self.embedding if head.weight is inner.embed_tokens.weight else self._hold(head.weight)
            self.head_bias = None if head.bias is None else self._hold(head.bias)
        self._pointers = self._read_pointers()

    def update(self) -> bool:
        """The parameters have changed: refresh what is copied. True if any of them is now elsewhere in memory."""
        if reason := supports(self.model):
            raise TurnwiseError(f"the native engine cannot run this model any more: {reason}")
        if self.model.lm_head.weight.device != self.device:
            raise TurnwiseError("the native engine's model has moved to another device: make a new engine")
        if self._read_pointers() != self._pointers:
            self._read()
            return True
        with torch.no_grad():
            moved = [linear.update() for layer in self.layers for linear in layer.linears]
            for source, copy in self._copies:
                copy.copy_(source)
        return any(moved)

    def rotation(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every position's angles, [length, head_dim]."""
        return rotation(self.model.model.rotary_emb, length, self.device, self.dtype)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        normed = hasattr(attention, "q_norm")
        return Layer(
            before_attention=self._hold(layer.input_layernorm.weight),
            qkv=Linear([attention.q_proj, attention.k_proj, attention.v_proj], self.dtype),
            q_norm=self._hold(attention.q_norm.weight) if normed else None,
            k_norm=self._hold(attention.k_norm.weight) if normed else None,
            out=Linear([attention.o_proj], self.dtype),
            before_mlp=self._hold(layer.post_attention_layernorm.weight),
            gate_up=Linear([mlp.gate_proj, mlp.up_proj], self.dtype),
            down=Linear([mlp.down_proj], self.dtype),
        )

    def _hold(self, parameter: Tensor) -> Tensor:
        data = parameter.detach()
        if data.dtype == self.dtype:
            return data
        copy = data.to(self.dtype)
        self._copies.append((data, copy))
        return copy

    def _read_pointers(self) -> list[int]:
        """The addresses of the parameters that are read in place."""
        return [parameter.data_ptr() for name, parameter in self.model.named_parameters() if "_proj" not in name]


def rotation(rotary: Any, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, [length, head_dim], as transformers rounds them; sin has the sign that goes with a rotation
    by half the head: first half minus, second half plus."""
    angles = torch.arange(length, device=device)[:, None].float() * rotary.inv_freq.float().to(device)
    cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def supports(model: Any) -> str | None:
    """Why the native engine cannot run this model; None if it can."""
    causal = _causal(model)
    config: Any = getattr(causal, "config", None)
    kind = getattr(config, "model_type", None)
    name = type(causal).__name__
    if kind not in FAMILIES or not name.endswith("ForCausalLM"):
        return f"{name} ({kind or 'no transformers config'}) is not a causal language model of the {', '.join(FAMILIES)} families"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"its activation is {config.hidden_act}, and only silu is known here"
    if any(t != "full_attention" for t in getattr(config, "layer_types", None) or ()):
        return "some of its layers have sliding-window attention"
    rope = getattr(causal.model.rotary_emb, "rope_type", "default")
    if rope not in ROPES:
        return f"its rotary embedding is of type {rope}, whose frequencies change with the length"
    return _unfit_layers(model, causal) or _unfit_parameters(causal) or _unfit_gpu(causal)


def _unfit_layers(model: Any, causal: Any) -> str | None:
    tuner = getattr(model, "peft_config", None)
    if tuner and any(str(getattr(c.peft_type, "value", c.peft_type)).upper() != "LORA" for c in tuner.values()):
        return "of adapters only LoRA is known here"
    if type(causal.lm_head) is not nn.Linear or type(causal.model.embed_tokens) is not nn.Embedding:
        return "its embedding or output layer is wrapped or quantised"
    for number, layer in enumerate(causal.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for group in (["q_proj", "k_proj", "v_proj"], ["o_proj"]):
            if problem := _unfit_linears([getattr(attention, name) for name in group]):
                return f"layer {number}, {group[0]}: {problem}"
        for group in (["gate_proj", "up_proj"], ["down_proj"]):
            if problem := _unfit_linears([getattr(mlp, name) for name in group]):
                return f"layer {number}, {group[0]}: {problem}"
    return None


def _unfit_linears(modules: Sequence[Any]) -> str | None:
    plain = [_base(module) for module in modules]
    for module, layer in zip(modules, plain, strict=True):
        if type(layer) is not nn.Linear:
            return f"{type(layer).__name__} is not a plain linear layer (quantised?)"
        if module is not layer:
            if not hasattr(module, "lora_A"):
                return f"{type(module).__name__} is a wrapper other than LoRA"
            if any(getattr(module, "use_dora", {}).values()) or getattr(module, "lora_variant", None):
                return "DoRA and other variants of LoRA are not known here"
            if any(getattr(module, "lora_bias", {}).values()):
                return "LoRA with a bias is not known here"
    if len({layer.bias is None for layer in plain}) > 1:
        return "some of the layers that are run as one have a bias and some have none"
    return None


def _unfit_parameters(causal: Any) -> str | None:
    parameters = [p for name, p in causal.named_parameters() if "lora_" not in name]
    if any(type(p.data) is not Tensor for p in parameters):
        return "its parameters are sharded or otherwise not plain tensors"
    if len({p.device for p in parameters}) > 1 or parameters[0].device.type == "meta":
        return "its parameters are on several devices or on none"
    if len({p.dtype for p in parameters}) > 1 or not parameters[0].dtype.is_floating_point:
        return "its parameters have several dtypes"
    return None


def _unfit_gpu(causal: Any) -> str | None:
    if causal.lm_head.weight.device.type == "cpu":
        return None
    if causal.lm_head.weight.device.type != "cuda":
        return f"there are no kernels for devices of type {causal.lm_head.weight.device.type}"
    if find_spec("triton") is None:
        return "the kernels for a GPU need triton, which is not installed"
    size = shape_of(causal.config).head_dim
    return None if size in GPU_HEADS else f"its heads have {size} numbers, and the kernels for a GPU know {GPU_HEADS}"


def _causal(model: Any) -> Any:
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


def _base(module: Any) -> Any:
    return module.base_layer if hasattr(module, "base_layer") else module


def _adapters(module: Any) -> list[tuple[Tensor, Tensor, float]]:
    """The LoRA factors that are active on a layer now."""
    if not hasattr(module, "lora_A") or module.merged or module.disable_adapters:
        return []
    names = [name for name in module.active_adapters if name in module.lora_A]
    return [(module.lora_A[name].weight, module.lora_B[name].weight, float(module.scaling[name])) for name in names]


def _joined(parameters: Sequence[Any], dtype: torch.dtype, last: Tensor | None) -> Tensor:
    """The parameters stacked in one tensor: they themselves if possible, otherwise a copy in another dtype."""
    rows = [len(p) for p in parameters]
    if parameters[0].dtype != dtype:
        joined = torch.cat([p.detach() for p in parameters]).to(dtype)
        return last.copy_(joined) if last is not None and last.shape == joined.shape and last.device == joined.device else joined
    if len(parameters) == 1:
        single: Tensor = parameters[0].detach()
        return single
    if not _adjacent(parameters):
        home = torch.cat([p.detach() for p in parameters])
        for parameter, part in zip(parameters, home.split(rows), strict=True):
            parameter.data = part
    first = parameters[0].detach()
    return first.as_strided((sum(rows), *first.shape[1:]), first.stride())


def _adjacent(parameters: Sequence[Any]) -> bool:
    """Whether these are already contiguous in the same storage."""
    end = parameters[0].data_ptr()
    storage = parameters[0].untyped_storage().data_ptr()
    for p in parameters:
        if p.data_ptr() != end or p.untyped_storage().data_ptr() != storage or not p.is_contiguous():
            return False
        end += p.numel() * p.element_size()
    return True


def shape_of(config: Any) -> Shape:
    """The sizes of a model, from its configuration."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        middle=config.intermediate_size,
        vocabulary=config.vocab_size,
        eps=config.rms_norm_eps,
        longest=config.max_position_embeddings,
    )
