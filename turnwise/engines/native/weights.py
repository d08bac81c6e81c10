"""The learner's own parameters, as the engine reads them.

There is no second copy of the weights. Layers that read the same input (query, key and value; gate and up) run as one matrix product, and
for that their parameters must be contiguous in memory: they are moved there once and stay parameters of the module, with the same values,
the same identity and their own gradients. An optimiser that updates them in place updates the engine at the same time. If something has
moved a parameter since (a load, a change of device), `Weights.update` notices and moves it back.

A weight that is stored in 4 bits is unpacked whenever its layer computes, and for few rows on a GPU it is multiplied as it is: nothing but
the learner's codes stays in memory.

Two things are copies, both made again by `update`: LoRA adapters (small: stacked, scaled and cast, then applied on the fly next to the
untouched base weights), and everything if the engine is asked to compute in another dtype than the module has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.engines.fourbit import dense, is_packed, times, unpack
from turnwise.engines.module import active_adapters
from turnwise.engines.native.families import base_of, causal_of, shape_of, supports
from turnwise.kernels.experts import Experts
from turnwise.util.errors import TurnwiseError

FEW_ROWS = 512  # up to so many, a GPU leaves the product with a packed weight to its library
Multiply = Callable[[Tensor, Sequence[Any], Tensor | None], Tensor | None]  # rows by packed weights, plus a bias; None if it cannot
NO_ROTATION = -1  # the rotation of layers without one: their queries and keys do not know their positions


class Linear:
    """Linear layers that read the same input, as one: a weight, a bias or none, and LoRA factors or none."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype, stacks: bool = True):
        """`stacks`: LoRA factors are copied, stacked and scaled; otherwise the caller reads them (`adapters`)."""
        self._modules, self._dtype, self._stacks = modules, dtype, stacks
        self._packed = is_packed(base_of(modules[0]))
        self.sizes: list[int] = [base_of(module).out_features for module in modules]  # of what each of them gives
        self._weight: Tensor | None = None
        self._places: list[int] = []
        self.bias: Tensor | None = None
        self.adapted = False  # whether any of them has adapters
        self.down: Tensor | None = None  # [ranks, in]
        self.up: Tensor | None = None  # [out, ranks]: blocks on the diagonal, scaled
        self.update()

    def update(self) -> bool:
        """Read the parameters again. Returns whether any of the tensors has been replaced."""
        plain = [base_of(module) for module in self._modules]
        self.adapted = any(hasattr(module, "lora_A") for module in self._modules)
        before = self._places
        if not self._packed:
            self._weight = _joined([layer.weight for layer in plain], self._dtype, self._weight)
        biases = [layer.bias for layer in plain if layer.bias is not None]
        self.bias = _joined(biases, self._dtype, self.bias) if biases else None
        if self._stacks:
            self._update_adapters()
        held = self._codes if self._packed else [self._weight]
        self._places = [0 if tensor is None else tensor.data_ptr() for tensor in (*held, self.bias, self.down, self.up)]
        return before != self._places

    @property
    def copies(self) -> bool:
        """Whether anything here is a copy of the parameters, or depends on more than them: another dtype, adapters, codes of 4 bits."""
        return self.adapted or self._packed or base_of(self._modules[0]).weight.dtype != self._dtype

    @property
    def plain(self) -> bool:
        """Whether this is a product with one dense weight, and nothing else."""
        return not self._packed and self.down is None

    @property
    def _codes(self) -> list[Any]:
        """The packed weights."""
        return [base_of(module).weight for module in self._modules]

    @property
    def weight(self) -> Tensor:
        """The joined weight. One that is stored in 4 bits is unpacked each time, for this layer alone."""
        if self._weight is not None:
            return self._weight
        codes = self._codes
        if len(codes) == 1 and not codes[0].is_cuda:
            return dense(codes[0]).to(self._dtype)
        whole = torch.empty(sum(self.sizes), base_of(self._modules[0]).in_features, dtype=self._dtype, device=codes[0].device)
        for code, part in zip(codes, whole.split(self.sizes), strict=True):
            unpack(code, part)
        return whole

    def product(self, x: Tensor, packed: Multiply | None = None) -> Tensor:
        """The rows of x times the weight, with the bias and without adapters. `packed`: on a GPU, what multiplies few rows by weights of 4
        bits instead of their library, if it takes them."""
        codes = self._codes if self._packed and x.is_cuda and len(x) <= FEW_ROWS else []
        if not codes or codes[0].quant_state.dtype != x.dtype:
            return nn.functional.linear(x, self.weight, self.bias)
        product = None if packed is None else packed(x, codes, self.bias)
        if product is not None:
            return product
        parts = [times(x, code) for code in codes]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return out if self.bias is None else out.add_(self.bias)

    def adapters(self) -> list[list[tuple[Tensor, Tensor, float]]]:
        """The LoRA factors that are active now on each of the layers, with their scale."""
        return [active_adapters(module) for module in self._modules]

    def _update_adapters(self) -> None:
        downs, blocks, rows = [], [], 0
        for module, out in zip(self._modules, self.sizes, strict=True):
            for down, up, scale in active_adapters(module):
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

    def __call__(self, x: Tensor, packed: Multiply | None = None) -> Tensor:
        out = self.product(x, packed)
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
    gate_up: Any  # a Linear, as `down`; None if there are experts
    down: Any
    experts: Experts | None = None
    after_attention: Tensor | None = None  # norms of what attention and MLP give, before it is added (Gemma)
    after_mlp: Tensor | None = None
    rotation: int = 0  # which of the model's rotations
    window: int = 0  # how many tokens attention sees, the newest included; 0: all
    shift: Tensor | None = None  # [positions, kv heads, head_dim]: what keys are stored relative to, in a cache of 8 bits

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.qkv, self.out) if self.experts is not None else (self.qkv, self.out, self.gate_up, self.down)


class Weights:
    """All weights of one model in the order of their use. `dtype` is what to compute in: by default what the weights are. `stacks`: LoRA
    factors are copied next to them."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, stacks: bool = True):
        if reason := supports(model):
            raise TurnwiseError(f"the native engine cannot run this model: {reason}. TransformersEngine takes other models")
        self.model = causal_of(model)
        self.dtype: torch.dtype = dtype or self.model.lm_head.weight.dtype
        self.shape = shape_of(self.model.config)
        self._stacks = stacks
        self._read()

    def _read(self) -> None:
        inner, head = self.model.model, self.model.lm_head
        self.device: torch.device = head.weight.device
        self._copies: list[tuple[Tensor, Tensor, float]] = []  # what is copied, the copy, what is added to it
        with torch.no_grad():
            self.layers = [self._layer(layer) for layer in inner.layers]
            self.embedding = self._hold(inner.embed_tokens.weight)
            factor = getattr(inner.embed_tokens, "embed_scale", None)
            self.embedding_scale = None if factor is None else factor.to(self.dtype).to(self.device)
            self.norm = self._hold_norm(inner.norm)
            self.head = self.embedding if head.weight is inner.embed_tokens.weight else self._hold(head.weight)
            self.head_bias = None if head.bias is None else self._hold(head.bias)
        self._pointers = self._read_pointers()
        self._seen = self._identities()

    def update(self) -> bool:
        """The parameters have changed: refresh what is copied. True if any of them is now elsewhere in memory."""
        if self._seen is not None and self._seen == self._identities():  # the usual case: new values in the same places
            self.copy_again()
            return False
        moved = self._update()
        self._seen = self._identities()
        return moved

    def _identities(self) -> list[Any] | None:
        """Which parameters there are, and where; None if layers hold copies of theirs, which are to be made again. All of a model's modules
        are looked at after every update of the weights, so this goes through their dictionaries by itself."""
        if any(linear.copies for layer in self.layers for linear in layer.linears):
            return None
        identities: list[Any] = []
        modules: list[Any] = [self.model]
        while modules:
            module = modules.pop()
            identities.append(type(module))
            identities += [(id(p), p.data_ptr(), p.dtype) for p in module._parameters.values() if p is not None]
            modules += [child for child in module._modules.values() if child is not None]
        return identities

    def _update(self) -> bool:
        if reason := supports(self.model):
            raise TurnwiseError(f"the native engine cannot run this model any more: {reason}")
        if self.model.lm_head.weight.device != self.device:
            raise TurnwiseError("the native engine's model has moved to another device: make a new engine")
        if self._read_pointers() != self._pointers:
            self._read()
            return True
        with torch.no_grad():
            moved = [linear.update() for layer in self.layers for linear in layer.linears]
        self.copy_again()
        return any(moved)

    def copy_again(self) -> None:
        """Refresh what is copied, if anything is."""
        if self._copies:
            sources, targets, added = map(list, zip(*self._copies, strict=True))
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
                torch._foreach_add_(targets, added)

    def embed(self, ids: Tensor) -> Tensor:
        """What goes into the first layer."""
        embedded = nn.functional.embedding(ids, self.embedding)
        return embedded if self.embedding_scale is None else embedded.mul_(self.embedding_scale)

    def bounded(self, logits: Tensor) -> Tensor:
        """The logits, bounded if the model bounds them."""
        cap = self.shape.softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def rotations(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """For each rotation of the model, cos and sin of every position's angles, [length, head_dim], as transformers rounds them; sin has
        the sign that goes with a rotation by half the head: first half minus, second half plus. If some layers have none, the last entry
        turns nothing: it is number `NO_ROTATION`."""
        none = any(layer.rotation == NO_ROTATION for layer in self.layers)
        return rotations_of(self.model.model, length, self.device, self.dtype, none)

    def shift_keys(self, length: int) -> None:
        """For a cache in 8 bits: what keys of every position up to `length` are stored relative to. It is their bias, rotated: often far
        larger than what varies, so that a common scale would leave few steps for the rest. Heads that are normed have none."""
        shape, turns = self.shape, self.rotations(length)
        for layer in self.layers:
            bias = layer.qkv.bias
            if bias is None or layer.k_norm is not None:
                continue
            key_bias = bias.view(-1, shape.head_dim)[shape.heads : shape.heads + shape.kv_heads].float()
            cos, sin = (turn[:, None].float() for turn in turns[layer.rotation])
            shift = (key_bias * cos + key_bias.roll(shape.head_dim // 2, -1) * sin).to(self.dtype)
            layer.shift = shift if layer.shift is None else layer.shift.copy_(shift)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        normed, sparse, wrapped = hasattr(attention, "q_norm"), hasattr(mlp, "experts"), hasattr(layer, "pre_feedforward_layernorm")
        return Layer(
            before_attention=self._hold_norm(layer.input_layernorm),
            qkv=self._linear(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=self._hold_norm(attention.q_norm) if normed else None,
            k_norm=self._hold_norm(attention.k_norm) if normed else None,
            out=self._linear(attention.o_proj),
            before_mlp=self._hold_norm(layer.pre_feedforward_layernorm if wrapped else layer.post_attention_layernorm),
            gate_up=None if sparse else self._linear(mlp.gate_proj, mlp.up_proj),
            down=None if sparse else self._linear(mlp.down_proj),
            experts=Experts.of(mlp, self._hold) if sparse else None,
            after_attention=self._hold_norm(layer.post_attention_layernorm) if wrapped else None,
            after_mlp=self._hold_norm(layer.post_feedforward_layernorm) if wrapped else None,
            rotation=rotation_of(self.model.model, attention),
            window=getattr(attention, "sliding_window", None) or 0,
        )

    def _linear(self, *modules: nn.Module) -> Linear:
        return Linear(modules, self.dtype, self._stacks)

    def _hold_norm(self, norm: Any) -> Tensor:
        """The factors of a norm."""
        if not self.shape.centred:
            return self._hold(norm.weight)
        data = norm.weight.detach()
        copy = norm_factors(data)
        self._copies.append((data, copy, 1.0))
        return copy

    def _hold(self, parameter: Tensor) -> Tensor:
        data = parameter.detach()
        if data.dtype == self.dtype:
            return data
        copy = data.to(self.dtype)
        self._copies.append((data, copy, 0.0))
        return copy

    def _read_pointers(self) -> list[int]:
        """The addresses of the parameters that are read in place."""
        named = self.model.named_parameters()
        return [parameter.data_ptr() for name, parameter in named if "_proj" not in name or ".experts." in name]


def norm_factors(weight: Tensor) -> Tensor:
    """What a norm multiplies by in a model whose norms multiply by 1 + weight: it does so in float32, before it rounds."""
    return 1.0 + weight.to(torch.promote_types(weight.dtype, torch.float32))


def rotation_of(inner: Any, attention: Any) -> int:
    """Which of a model's rotations its layer has."""
    if not getattr(attention, "use_rope", True):
        return NO_ROTATION
    kinds = _rotation_kinds(inner.rotary_emb)
    return 0 if kinds == [""] else kinds.index(f"{attention.layer_type}_")


def rotations_of(inner: Any, length: int, device: torch.device, dtype: torch.dtype, none: bool) -> list[tuple[Tensor, Tensor]]:
    """`Weights.rotations` of a model's inner part. `none`: some layers have no rotation."""
    rotary, rotations = inner.rotary_emb, []
    for kind in _rotation_kinds(rotary):
        frequencies, factor = getattr(rotary, f"{kind}inv_freq"), getattr(rotary, f"{kind}attention_scaling")
        angles = torch.arange(length, device=device)[:, None].float() * frequencies.float().to(device)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        rotations.append((torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)))
    if none:
        rotations.append((torch.ones_like(rotations[0][0]), torch.zeros_like(rotations[0][1])))
    return rotations


def _rotation_kinds(rotary: Any) -> list[str]:
    """How the names of a rotary embedding's frequencies begin: one kind for all layers, or one per type of layer."""
    return [f"{kind}_" for kind in rotary.rope_type] if isinstance(rotary.rope_type, dict) else [""]


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
