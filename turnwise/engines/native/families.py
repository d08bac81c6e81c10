"""Which models the native engine knows, and how it knows that it does.

A family is known by its class in transformers, by the fields of its configuration and by its parameters. All three are compared with what
was known when this code was written: a field that is new and switched on, a rotary embedding of another type or a parameter that nothing
here reads could change the forward pass, so each of them is a reason not to take the model. Wrong numbers would be silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from turnwise.engines.fourbit import is_packed, unread

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
GPU_HEADS = (16, 32, 64, 128, 256)
ROPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the sequence length
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of a configuration that are read here, or that do not matter to a forward pass.
FIELDS = _words(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act
    hidden_activation max_position_embeddings initializer_range rms_norm_eps use_cache tie_word_embeddings rope_parameters attention_bias
    mlp_bias attention_dropout pad_token_id bos_token_id eos_token_id pretraining_tp layer_types sliding_window use_sliding_window
    max_window_layers sliding_window_pattern no_rope_layers no_rope_layer_interval decoder_sparse_step mlp_only_layers
    moe_intermediate_size num_experts num_local_experts num_experts_per_tok norm_topk_prob output_router_logits router_aux_loss_coef
    query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping use_bidirectional_attention architectures model_type dtype
    transformers_version chunk_size_feed_forward id2label label2id is_encoder_decoder output_hidden_states problem_type return_dict
    quantization_config"""
)
ROPE_FIELDS = _words(
    """rope_type type rope_theta factor low_freq_factor high_freq_factor original_max_position_embeddings attention_factor beta_fast
    beta_slow mscale mscale_all_dim truncate"""
)
# A field that the configuration's class does not declare has no effect, unless a model asks for it by name. These words make it suspect.
SUSPECT = _words(
    """rope rotary mrope yarn attn attention window cap softcap softcapping softcapped capping scale scaling scaled multiplier norm norms qk
    bias biases act activation expert experts router moe residual logit logits embed embedding"""
)
ALWAYS = {"use_qk_norm": ("qwen3", "qwen3_moe", "gemma3_text")}  # what some files say of a family that does it anyway
NORMS = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm self_attn.q_norm self_attn.k_norm"
LINEARS = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
PARAMETERS = frozenset(
    [f"layers.{name}.weight" for name in _words(f"{NORMS} {LINEARS} mlp.gate")]
    + [f"layers.{name}.bias" for name in _words(LINEARS)]
    + ["layers.mlp.experts.gate_up_proj", "layers.mlp.experts.down_proj", "embed_tokens.weight", "norm.weight"]
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model, and what is special about its arithmetic."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    middle: int
    vocabulary: int
    eps: float
    longest: int
    activation: str = "silu"
    scaling: float | None = None  # of the products of queries and keys; None: 1 / √head_dim
    softcap: float | None = None  # a bound on the logits
    centred: bool = False  # norms multiply by 1 + weight, in float32

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        scale: float = self.head_dim**-0.5 if self.scaling is None else self.scaling
        return scale


def shape_of(config: Any) -> Shape:
    """What the engine has to know of a configuration."""
    gemma = config.model_type == "gemma3_text"
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        middle=config.intermediate_size,
        vocabulary=config.vocab_size,
        eps=config.rms_norm_eps,
        longest=config.max_position_embeddings,
        activation=_activation(config),
        scaling=config.query_pre_attn_scalar**-0.5 if gemma else None,
        softcap=config.final_logit_softcapping if gemma else None,
        centred=gemma,
    )


def causal_of(model: Any) -> Any:
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


def base_of(module: Any) -> Any:
    """The plain layer inside an adapter."""
    return module.base_layer if hasattr(module, "base_layer") else module


def supports(model: Any) -> str | None:
    """Why the native engine cannot run this model; None if it can."""
    causal = causal_of(model)
    config: Any = getattr(causal, "config", None)
    kind = getattr(config, "model_type", None)
    name = type(causal).__name__
    if kind not in FAMILIES or FAMILIES[kind] != name:
        return f"{name} ({kind or 'no transformers config'}) is not a causal language model of the {', '.join(FAMILIES)} families"
    if not type(causal).__module__.startswith("transformers.models."):
        return f"{name} is defined in {type(causal).__module__} and not in transformers"
    if _activation(config) not in ACTIVATIONS:
        return f"its activation is {_activation(config)}, and only {' and '.join(ACTIVATIONS)} are known here"
    return (
        _unknown_fields(config)
        or _unfit_rope(causal, config)
        or _unfit_attention(causal, config)
        or _unfit_layers(model, causal)
        or _unfit_parameters(causal)
        or _unfit_gpu(causal)
    )


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu"))


def _unknown_fields(config: Any) -> str | None:
    """Fields of the configuration that were not known when this was written, and that may change the forward pass."""
    declared = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    for name, value in vars(config).items():
        if name in FIELDS or name.startswith("_") or (value is True and config.model_type in ALWAYS.get(name, ())):
            continue
        if name in declared:
            changed = value != declared[name] and not _neutral(value)
        else:
            changed = bool(SUSPECT & set(re.split(r"[^a-z]+", name.lower()))) and not _neutral(value)
        if changed:
            return f"its configuration has {name} = {value!r}, which is not known here and may change its forward pass"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return f"it bounds attention scores (attn_logit_softcapping = {config.attn_logit_softcapping})"
    return "its attention looks ahead" if getattr(config, "use_bidirectional_attention", False) else None


def _neutral(value: Any) -> bool:
    """Whether a setting is off: nothing, no, a number that neither adds nor multiplies."""
    if isinstance(value, (bool, dict, list, tuple)) or value is None:
        return not value
    return value in (0, 1, "default", "")


def _unfit_rope(causal: Any, config: Any) -> str | None:
    rotary = causal.model.rotary_emb
    types = rotary.rope_type if isinstance(rotary.rope_type, dict) else {"": rotary.rope_type}
    for layers, rope in types.items():
        if rope not in ROPES:
            return f"its rotary embedding is of type {rope}, whose frequencies change with the length or are not known here"
        frequencies = getattr(rotary, f"{layers}_inv_freq" if layers else "inv_freq")
        if 2 * len(frequencies) != shape_of(config).head_dim:
            return f"its rotary embedding turns {2 * len(frequencies)} of the {shape_of(config).head_dim} numbers of a head"
    given = config.rope_parameters or {}
    for part in [given, *(value for value in given.values() if isinstance(value, dict))]:
        for name, value in part.items():
            known = name in ROPE_FIELDS or isinstance(value, dict) or _neutral(value)
            if not known:
                return f"its rotary embedding has {name} = {value!r}, which is not known here"
    return None


def _unfit_attention(causal: Any, config: Any) -> str | None:
    kinds = getattr(config, "layer_types", None)
    for number, layer in enumerate(causal.model.layers):
        kind = kinds[number] if kinds else None
        if kind not in (None, "full_attention", "sliding_attention"):
            return f"layer {number} has attention of type {kind}"
        window = getattr(layer.self_attn, "sliding_window", None)
        if kind is not None and (kind == "sliding_attention") != (window is not None):
            return f"layer {number} has attention of type {kind} and a sliding window of {window}"
    return None


def _unfit_layers(model: Any, causal: Any) -> str | None:
    tuner = getattr(model, "peft_config", None)
    if tuner and any(str(getattr(c.peft_type, "value", c.peft_type)).upper() != "LORA" for c in tuner.values()):
        return "of adapters only LoRA is known here"
    if type(causal.lm_head) is not nn.Linear or type(causal.model.embed_tokens).__name__ not in EMBEDDINGS:
        return "its embedding or output layer is wrapped or quantised"
    known: set[int] = set()
    for number, layer in enumerate(causal.model.layers):
        for group in _joined_layers(layer):
            known.update(map(id, group))
            if problem := _unfit_linears(group):
                return f"layer {number}: {problem}"
    unknown = [name for name, module in causal.named_modules() if hasattr(module, "lora_A") and id(module) not in known]
    return f"it has an adapter on {unknown[0]}, which is not known here" if unknown else None


EMBEDDINGS = ("Embedding", "Gemma3TextScaledWordEmbedding")


def _joined_layers(layer: Any) -> Iterator[list[Any]]:
    """The linear layers of a layer; those that run as one product together."""
    attention, mlp = layer.self_attn, layer.mlp
    yield [attention.q_proj, attention.k_proj, attention.v_proj]
    yield [attention.o_proj]
    if not hasattr(mlp, "experts"):
        yield [mlp.gate_proj, mlp.up_proj]
        yield [mlp.down_proj]


def _unfit_linears(modules: Sequence[Any]) -> str | None:
    plain = [base_of(module) for module in modules]
    for module, layer in zip(modules, plain, strict=True):
        if is_packed(layer):
            if reason := unread(layer.weight):
                return reason
        elif type(layer) is not nn.Linear:
            return f"{type(layer).__name__} is not a plain linear layer (quantised?)"
        if module is not layer:
            if not hasattr(module, "lora_A"):
                return f"{type(module).__name__} is a wrapper other than LoRA"
            if any(getattr(module, "use_dora", {}).values()) or getattr(module, "lora_variant", None):
                return "DoRA and other variants of LoRA are not known here"
            if any(getattr(module, "lora_bias", {}).values()):
                return "LoRA with a bias is not known here"
    if len({is_packed(layer) for layer in plain}) > 1:
        return "some of the layers that are run as one are stored in 4 bits and some are not"
    if len({layer.bias is None for layer in plain}) > 1:
        return "some of the layers that are run as one have a bias and some have none"
    return None


def _unfit_parameters(causal: Any) -> str | None:
    named = [(name, p) for name, p in causal.named_parameters() if "lora_" not in name]
    for name, _ in named:
        plain = re.sub(r"\.\d+\.", ".", name.replace(".base_layer", ""), count=1).removeprefix("model.")
        if plain not in PARAMETERS and not plain.startswith("lm_head."):
            return f"nothing here reads its parameter {name}"
    if len({p.device for _, p in named}) > 1 or named[0][1].device.type == "meta":
        return "its parameters are on several devices or on none"
    parameters = [p for _, p in named if getattr(p, "quant_state", None) is None]
    if any(type(p.data) is not Tensor for p in parameters):
        return "its parameters are sharded or otherwise not plain tensors"
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
