"""Auxiliary models as a recipe describes them: loaded, built, exported."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from turnwise.learn import models as loading
from turnwise.learn.auxiliary.model import AuxiliaryModel, KindTraits, Training
from turnwise.learn.auxiliary.scorer import plain_weights
from turnwise.learn.forward import PackedModel, VisionModel, has_adapters
from turnwise.learn.learner import Learner
from turnwise.learn.logprobs import Head
from turnwise.learn.lora import has_packed
from turnwise.learn.ranks.export import plain_model
from turnwise.learn.saving import write_folder, write_model
from turnwise.learn.sections import AuxiliarySettings, OptimiserSettings
from turnwise.learn.tiny import TinySize, build_model
from turnwise.methods.registry import model_kinds
from turnwise.util.errors import TurnwiseError
from turnwise.util.hub import find_model
from turnwise.util.seeds import derive

HEADS = "heads.safetensors"  # next to the weights in an exported folder


class Headless(PackedModel):
    """A model without an output layer over the vocabulary, such as a reward model: hidden states only."""

    def __init__(self, model: Any):
        super().__init__(model, fused=False)

    @property
    def head(self) -> Head:
        return Head(torch.zeros(0, self.causal.config.get_text_config().hidden_size))

    def _check_head(self) -> None:
        """There is none."""


@dataclass(frozen=True)
class Beside:
    """What an auxiliary model is built with: the policy and its tokenizer, the run's seed."""

    learner: Learner
    tokenizer: Any
    seed: int


def build(name: str, section: AuxiliarySettings, beside: Beside) -> AuxiliaryModel:
    """The model of `[models.NAME]`."""
    where = f"models.{name}"
    made = model_kinds[section.kind].make(section.options, model_kinds.kind)
    seed, policy = derive(beside.seed, where), beside.learner
    packed, tokenizer = _weights(name, section, made, beside, seed)
    model = AuxiliaryModel(
        name,
        packed,
        tokenizer,
        kind=made,
        training=training_of(section) if section.trained else None,
        dtype=dtype_of(section, packed.device, policy.settings.dtype),
        temperature=policy.settings.temperature,
        tokens_per_batch=policy.settings.tokens_per_batch,
        shares=section.reads is not None,
        texts=section.texts,
        starts_from_policy=section.copy_of is not None,
        seed=seed,
        ranks=policy.ranks,
        decisions=policy.decisions,
    )
    if model.shares and not model.places:
        raise TurnwiseError(f'{where}: reads="policy" needs a kind with heads, and {section.kind} has none')
    if section.path is not None:
        _load_heads(model, Path(find_model(section.path)))
    return model


def training_of(section: AuxiliarySettings) -> Training:
    """The optimiser's settings from the recipe."""
    return Training(OptimiserSettings(lr=section.lr, clip=section.clip), section.epochs)


def dtype_of(section: AuxiliarySettings, device: torch.device, policy: str) -> torch.dtype:
    """The dtype of the computation. A frozen model on a GPU needs no more than half precision."""
    half = not section.trained and device.type == "cuda" and section.reads is None
    found: torch.dtype = getattr(torch, "bfloat16" if half else policy)
    return found


def _weights(name: str, section: AuxiliarySettings, kind: Any, beside: Beside, seed: int) -> tuple[PackedModel, Any]:
    """The model, ready to run, on its device, and its tokenizer."""
    policy, tokenizer = beside.learner.policy, beside.tokenizer
    if section.reads is not None:
        return policy, tokenizer
    vision = None
    if section.path is not None:
        model, tokenizer = _classifier(section.path) if KindTraits.of(kind).classifier else loading.load_folder(section.path)
        if not section.texts:
            check_shared(name, tokenizer, beside.tokenizer, model.get_input_embeddings().weight.shape[0])
        vision = loading.load_vision(section.path)
    elif section.tiny is not None:
        own, rows = section.tiny, policy.causal.get_input_embeddings().weight.shape[0]
        longest = getattr(policy.causal.config.get_text_config(), "max_position_embeddings", TinySize.max_length)
        model = build_model(rows, TinySize(own.layers, own.hidden, own.heads, longest), seed % 2**63, tokenizer)
    else:
        model = copied(beside.learner)
    model = model.to(_device(name, section, beside.learner))
    if section.lora is not None:
        from turnwise.learn.lora import add_lora

        model = add_lora(model, rank=section.lora.rank, alpha=32.0, seed=seed % 2**63)
    if section.copy_of is not None:
        return policy.like(model), tokenizer
    if KindTraits.of(kind).classifier:
        return Headless(model), tokenizer
    return PackedModel(model) if vision is None else VisionModel(model, vision), tokenizer


def _device(name: str, section: AuxiliarySettings, learner: Learner) -> torch.device:
    if section.device is None:
        return learner.device
    if section.device.startswith("cuda") and not torch.cuda.is_available():
        raise TurnwiseError(f"models.{name}.device={section.device}, but torch sees no GPU here")
    return torch.device(section.device)


def copied(learner: Learner) -> Any:
    """A separate plain model with the policy's weights, float32."""
    if learner.ranks is not None or has_packed(learner.model):
        return plain_model(learner.policy, torch.float32).requires_grad_(True)
    model: Any = copy.deepcopy(learner.model)
    adapted = has_adapters(model)
    model = model.merge_and_unload() if adapted else model
    exact = {} if adapted else plain_weights(learner.policy, learner.weights.masters)
    for key, weight in model.named_parameters():
        weight.data = exact.get(key, weight.data).detach().float().clone()
        weight.requires_grad_(True)
    return model.eval()


def _classifier(path: str) -> tuple[Any, Any]:
    """A reward model (one number per sequence) and its tokenizer."""
    from transformers import AutoModelForSequenceClassification

    tokenizer = loading.tokenizer_of(path)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            find_model(path), dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:
        raise TurnwiseError(f"model {path} cannot be loaded as a reward model: {type(error).__name__}: {str(error)[:300]}") from error
    if getattr(model, "score", None) is None or model.config.num_labels != 1:
        raise TurnwiseError(
            f"model {path} is not a reward model: it gives {model.config.num_labels} numbers per sequence, and one is needed"
        )
    return model.eval(), tokenizer


def _load_heads(model: AuxiliaryModel, folder: Path) -> None:
    """Load heads that were exported next to the weights."""
    file = folder / HEADS
    if not model.heads or not file.is_file() or model.traits.classifier:
        return
    known = load_file(file)
    own = dict(model.heads.named_parameters())
    if {name: tuple(weight.shape) for name, weight in known.items()} != {name: tuple(weight.shape) for name, weight in own.items()}:
        raise TurnwiseError(f"models.{model.name}: {file} holds other heads ({', '.join(sorted(known))}) than its kind has")
    for name, weight in own.items():
        weight.data.copy_(known[name])


def export(model: AuxiliaryModel, folder: str | Path, merged: bool = True) -> Path:
    """Write an auxiliary model as a Hugging Face folder, atomically, with its heads next to the weights. One that reads the policy's hidden
    states has only heads."""
    own = {} if model.traits.classifier else dict(model.heads.named_parameters())
    heads = {name: weight.detach().float().cpu().contiguous() for name, weight in own.items()}

    def put(temporary: Path) -> None:
        if heads:
            save_file(heads, temporary / HEADS)

    if model.shares:
        return write_folder(folder, put)
    return write_model(model.packed.outer, Path(folder), merged, model.tokenizer, put)


SHOWN = 3


def difference(own: Any, policy: Any) -> str | None:
    """What differs between a model's tokenizer and the policy's, as text; None if every token has the same id in both."""
    if own is policy:
        return None
    here, there = own.get_vocab(), policy.get_vocab()
    if here == there:
        return None
    moved = sorted((number, token) for token, number in there.items() if token in here and here[token] != number)
    lacks = sorted((number, token) for token, number in there.items() if token not in here)
    more = sorted((number, token) for token, number in here.items() if token not in there)
    words = []
    if moved:
        examples = ", ".join(f"{token!r} is {here[token]} there and {number} here" for number, token in moved[:SHOWN])
        words.append(f"{len(moved)} tokens have other ids ({examples})")
    for what, found in (("it lacks", lacks), ("it adds", more)):
        if found:
            words.append(f"{what} {len(found)} tokens ({', '.join(repr(token) for _, token in found[:SHOWN])})")
    return "; ".join(words)


def check_shared(name: str, own: Any, policy: Any, rows: int) -> None:
    """Raises unless the policy's token ids mean the same to this model, which has embeddings for `rows` tokens."""
    found = difference(own, policy)
    if found is None and rows < len(policy):
        found = f"it has embeddings for {rows} tokens, and the policy's tokenizer has {len(policy)}"
    if found is not None:
        raise TurnwiseError(
            f"models.{name}: its tokenizer is not the policy's, so the policy's token ids mean something else to it: {found}. Use a model "
            f"of the same family, or models.{name}.texts=true, with which it reads texts alone"
        )
