"""The shapes of models as far as speed and memory depend on them: parameters, operations per token, bytes per token of cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError, unknown_name


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped key heads and a gated MLP. `tied`: the output layer is the embedding. `head_norms`: queries and keys are
    normed; `wrapped`: what a half of a layer adds is normed before; `biases`: how many numbers of a layer are biases. With `experts`, a
    layer has so many MLPs, each token goes through `active` of them, and `mlp` is the size of one; the layers in `dense` have a single MLP
    of the size `dense_mlp` instead. `vision`: the model has a vision part, which is not described here."""

    name: str
    hidden: int
    mlp: int
    layers: int
    heads: int
    key_heads: int
    words: int
    head_size: int
    tied: bool = False
    family: str = "qwen2"
    head_norms: bool = False
    wrapped: bool = False
    experts: int = 0
    active: int = 1
    dense: tuple[int, ...] = ()
    dense_mlp: int = 0
    biases: int = 0
    vision: bool = False

    @cached_property
    def middles(self) -> tuple[int, ...]:
        """Numbers inside the MLPs that a token goes through, layer by layer."""
        usual = self.mlp * (self.active if self.experts else 1)
        return tuple(self.dense_mlp if number in self.dense else usual for number in range(self.layers))

    @cached_property
    def middle(self) -> int:
        """The same in the layer where they are most."""
        return max(self.middles)

    def mixed(self, number: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and number not in self.dense

    @property
    def mixtures(self) -> int:
        """How many layers have experts."""
        return self.layers - len(self.dense) if self.experts else 0

    @property
    def plain(self) -> tuple[int, int]:
        """Layers whose MLP is made of linear layers, and the size of that MLP."""
        return (len(self.dense), self.dense_mlp) if self.experts else (self.layers, self.mlp)

    @property
    def queries(self) -> int:
        """Numbers of a token's queries."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Numbers of a token's keys, and of its values."""
        return self.key_heads * self.head_size

    @cached_property
    def linears(self) -> int:
        """Parameters of the linear layers of all layers: everything but experts and routers."""
        layers, mlp = self.plain
        return 2 * self.layers * self.hidden * (self.queries + self.keys) + 3 * layers * self.hidden * mlp

    @cached_property
    def matrices(self) -> int:
        """Parameters of the matrices of all layers."""
        return self.linears + self.mixtures * self.hidden * self.experts * (3 * self.mlp + 1)

    @cached_property
    def largest(self) -> int:
        """Those of the largest layer."""
        mlps = [3 * self.hidden * self.plain[1], self.hidden * self.experts * (3 * self.mlp + 1)]
        return 2 * self.hidden * (self.queries + self.keys) + max(mlps)

    @cached_property
    def used(self) -> int:
        """Parameters of the matrices that a token goes through."""
        return self.matrices - self.mixtures * 3 * self.hidden * self.mlp * (self.experts - self.active)

    @cached_property
    def vectors(self) -> int:
        """Parameters of norms and biases."""
        norms = self.hidden * (4 if self.wrapped else 2) + 2 * self.head_size * self.head_norms
        return self.layers * (norms + self.biases) + self.hidden

    @cached_property
    def head(self) -> int:
        """Parameters of the output layer."""
        return self.hidden * self.words

    @cached_property
    def parameters(self) -> int:
        return self.matrices + self.vectors + self.head * (1 if self.tied else 2)

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of keys and values per token, in 16 bits."""
        return 4 * self.layers * self.head_size * self.key_heads

    @cached_property
    def attention(self) -> float:
        """Operations per pair of tokens that attend to each other, forward."""
        return 4.0 * self.layers * self.head_size * self.heads


BASIC = (  # what files of all families have or have by default
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"),
    "tie_word_embeddings",
)
MIXED = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers")  # those of mixtures too
NAMES = ("model_type", *BASIC, "head_dim", "attention_bias", "mlp_bias", *MIXED)  # all that a shape depends on
KNOWN = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "smollm3")
HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text")
WRAPPED = ("gemma3", "gemma3_text")
BIASED = ("qwen2",)  # queries, keys and values have biases
MIXTURES = ("qwen3_moe",)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def _qwen(name: str, hidden: int, mlp: int, layers: int, heads: int, key_heads: int, words: int = 152064, tied: bool = False) -> ModelShape:
    size = hidden // heads
    return ModelShape(name, hidden, mlp, layers, heads, key_heads, words, size, tied, biases=(heads + 2 * key_heads) * size)


SHAPES = {  # Qwen2.5
    shape.name: shape
    for shape in (
        _qwen("0.5b", 896, 4864, 24, 14, 2, 151936, tied=True),
        _qwen("1.5b", 1536, 8960, 28, 12, 2, 151936, tied=True),
        _qwen("3b", 2048, 11008, 36, 16, 2, 151936, tied=True),
        _qwen("7b", 3584, 18944, 28, 28, 4),
        _qwen("14b", 5120, 13824, 48, 40, 8),
        _qwen("32b", 5120, 27648, 64, 40, 8),
        _qwen("72b", 8192, 29568, 80, 64, 8),
    )
}


def shape_of(model: str) -> ModelShape:
    """A model by its size (`7b`), or by a folder with its config.json, or by that file."""
    if model.lower() in SHAPES:
        return SHAPES[model.lower()]
    given = Path(model).expanduser()
    path = given if given.suffix == ".json" else given / "config.json"
    if not path.is_file():
        if "/" in model or (model and Path(model).exists()):
            raise TurnwiseError(f"{path} does not exist: give a folder with a model, or a size: {', '.join(SHAPES)}")
        raise unknown_name("model size", model, SHAPES)
    name = given.name if given.suffix != ".json" else given.parent.name or "model"
    try:
        return _shape_in(json.loads(path.read_text(encoding="utf-8")), name)
    except (ValueError, TypeError) as error:
        raise TurnwiseError(
            f"{path} does not describe a dense decoder as expected ({error}): give the size of a model that is about as large: "
            f"{', '.join(SHAPES)}"
        ) from error


def _shape_in(read: Any, name: str) -> ModelShape:
    """The shape that a config.json describes."""
    values = read.get("text_config", read) if isinstance(read, dict) else None
    if not isinstance(values, dict):
        raise ValueError("it is no table of settings")
    tied = {"tie_word_embeddings": read["tie_word_embeddings"]} if "tie_word_embeddings" in read else {}
    experts = next((key for key in EXPERTS if values.get(key)), None)
    if experts is not None and values.get("model_type") not in MIXTURES:
        raise ValueError(f"{experts} = {values[experts]}: a mixture of experts of another family than {', '.join(MIXTURES)}")
    try:
        found = shape_from(_completed(tied | values), name)
    except KeyError as error:
        raise ValueError(f"model_type {values.get('model_type')!r}, without {error.args[0]}") from error
    return found if values is read else replace(found, family=str(read.get("model_type") or ""), vision=True)


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """With what a file leaves out because it is the default of its family: some files name little more than sizes."""
    family = values.get("model_type")
    more = (("head_dim",) if family in HEAD_NORMS else ()) + (MIXED if family in MIXTURES else ())
    if not isinstance(family, str) or {*BASIC, *more} <= values.keys():
        return values
    from transformers import CONFIG_MAPPING

    if family not in CONFIG_MAPPING:
        return values
    try:
        completed: dict[str, Any] = CONFIG_MAPPING[family](**values).to_dict()
    except Exception as error:  # transformers checks values in its own ways
        raise ValueError(" ".join(str(error).split())) from error
    return completed


def _size(values: Mapping[str, Any], key: str) -> int:
    """A number of a config.json that cannot be 0."""
    if not isinstance(values[key], int) or values[key] < 1:
        raise ValueError(f"{key} is {values[key]!r}")
    return int(values[key])


def _dense_layers(values: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers of a mixture that have no experts."""
    given, step = values.get("mlp_only_layers") or [], _size(values, "decoder_sparse_step") if "decoder_sparse_step" in values else 1
    if not isinstance(given, list) or not all(isinstance(number, int) for number in given):
        raise ValueError(f"mlp_only_layers is {given!r}")
    return tuple(number for number in range(layers) if number in given or (number + 1) % step)


def shape_from(values: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that the values of a config.json describe."""
    heads, hidden, family = _size(values, "num_attention_heads"), _size(values, "hidden_size"), str(values.get("model_type") or "")
    layers = _size(values, "num_hidden_layers")
    experts = next((_size(values, key) for key in EXPERTS if values.get(key)), 0) if family in MIXTURES else 0
    dense = _dense_layers(values, layers) if experts else ()
    mixed = len(dense) < layers if experts else False
    shape = ModelShape(
        name,
        hidden=hidden,
        mlp=_size(values, "moe_intermediate_size" if mixed else "intermediate_size"),
        layers=layers,
        heads=heads,
        key_heads=_size(values, "num_key_value_heads") if values.get("num_key_value_heads") else heads,
        words=_size(values, "vocab_size"),
        head_size=_size(values, "head_dim") if values.get("head_dim") else hidden // heads,
        tied=bool(values.get("tie_word_embeddings", False)),
        family=family,
        head_norms=family in HEAD_NORMS,
        wrapped=family in WRAPPED,
        experts=experts if mixed else 0,
        active=_size(values, "num_experts_per_tok") if mixed else 1,
        dense=dense if mixed else (),
        dense_mlp=_size(values, "intermediate_size") if mixed and dense else 0,
    )
    return replace(shape, biases=_biases(values, shape))


def _biases(values: Mapping[str, Any], shape: ModelShape) -> int:
    """Numbers of the biases of a layer."""
    read = shape.queries + 2 * shape.keys
    if shape.family in BIASED:
        return read
    attention = read + shape.hidden if values.get("attention_bias") else 0
    return attention + (2 * shape.mlp + shape.hidden if values.get("mlp_bias") and shape.family not in MIXTURES else 0)
