"""The auxiliary models of a run, `[models.NAME]` of a recipe: built, exported, and all models together as signals see them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnwise.data.batch import Batch
from turnwise.learn import models as loading
from turnwise.learn.auxiliary.model import AuxiliaryModel, HasLoss, KindTraits, Training
from turnwise.learn.auxiliary.scorer import Scorer, plain_weights
from turnwise.learn.checkpoint import AUXILIARY
from turnwise.learn.forward import PackedModel, VisionModel, has_adapters
from turnwise.learn.learner import POLICY, REFERENCE, Learner
from turnwise.learn.logprobs import Head
from turnwise.learn.ranks.export import plain_model
from turnwise.learn.ranks.group import is_sharded
from turnwise.learn.saving import write_folder, write_model
from turnwise.learn.sections import AuxiliarySettings, OptimiserSettings, Tiny
from turnwise.learn.tiny import build_model
from turnwise.methods.registry import model_kinds
from turnwise.util.errors import TurnwiseError, unknown_name
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


def build(name: str, section: AuxiliarySettings, policy: Learner, tokenizer: Any, seed: int) -> AuxiliaryModel:
    """The model of `[models.NAME]`, next to the policy with its tokenizer; `seed` is the run's."""
    where = f"models.{name}"
    made = model_kinds[section.kind].make(section.options, model_kinds.kind)
    seed = derive(seed, where)
    packed, tokenizer = _weights(name, section, made, policy, tokenizer, seed)
    model = AuxiliaryModel(
        name,
        packed,
        tokenizer,
        kind=made,
        training=Training(OptimiserSettings(lr=section.lr, clip=section.clip), section.epochs) if section.trained else None,
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


def dtype_of(section: AuxiliarySettings, device: torch.device, policy: str) -> torch.dtype:
    """The dtype of the computation. A frozen model on a GPU needs no more than half precision."""
    half = not section.trained and device.type == "cuda" and section.reads is None
    found: torch.dtype = getattr(torch, "bfloat16" if half else policy)
    return found


def _weights(name: str, section: AuxiliarySettings, kind: Any, learner: Learner, tokenizer: Any, seed: int) -> tuple[PackedModel, Any]:
    """The model, ready to run, on its device, and its tokenizer; `tokenizer` is the policy's."""
    policy, shared = learner.policy, tokenizer
    if section.reads is not None:
        return policy, tokenizer
    vision = None
    if section.path is not None:
        model, tokenizer = _classifier(section.path) if KindTraits.of(kind).classifier else loading.load_folder(section.path)
        if not section.texts:
            check_shared(name, tokenizer, shared, model.get_input_embeddings().weight.shape[0])
        vision = loading.load_vision(section.path)
    elif section.tiny is not None:
        own, rows = section.tiny, policy.causal.get_input_embeddings().weight.shape[0]
        longest = getattr(policy.causal.config.get_text_config(), "max_position_embeddings", 4096)
        size = Tiny(layers=own.layers, hidden=own.hidden, heads=own.heads, max_length=longest)
        model = build_model(rows, size, seed % 2**63, tokenizer)
    else:
        model = copied(learner)
    model = model.to(_device(name, section, learner))
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
    if learner.ranks is not None or has_adapters(learner.model):
        return plain_model(learner.policy, torch.float32).requires_grad_(True)
    model: Any = copy.deepcopy(learner.model)
    exact = plain_weights(learner.policy, learner.weights.masters)
    for key, weight in model.named_parameters():
        weight.data = exact[key].float().clone()
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


def difference(own: Any, policy: Any) -> str | None:
    """What differs between a model's tokenizer and the policy's, as text; None if every token has the same id in both."""
    if own is policy:
        return None
    here, there = own.get_vocab(), policy.get_vocab()
    others = sorted(token for token in {*here, *there} if here.get(token) != there.get(token))
    return f"{len(others)} tokens have other ids or are unknown to one of them, such as {others[0]!r}" if others else None


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


class Models:
    """`models.policy`, `models.reference`, `models["teacher"]`. `keep_reference`: keep a reference even if no KL needs one. `longest` is
    the largest number of tokens of a response (engine.max_tokens), 0 if it is unknown."""

    def __init__(
        self,
        learner: Learner,
        tokenizer: Any,
        auxiliary: Mapping[str, AuxiliaryModel] | None = None,
        keep_reference: bool = False,
        longest: int = 0,
    ):
        self.learner, self.auxiliary, self.longest = learner, dict(auxiliary or {}), longest
        if learner.critic is not None and learner.critic.name in self.auxiliary:
            raise TurnwiseError(f"models.{learner.critic.name}: the critic of learner.value has this name, choose another one")
        self.progress = 0.0
        self.policy = learner.scorer(tokenizer=tokenizer)
        self._own_reference = learner.make_reference() if keep_reference and learner.reference is None else None
        # every model leaves room for what the others will still allocate permanently on its device: moments of their optimisers
        self.learner.memory.others = lambda: self._to_come(None)
        for name, model in self.auxiliary.items():
            model.budget.memory.others = lambda own=name: self._to_come(own)  # type: ignore[misc]

    @property
    def reference(self) -> Scorer:
        """The frozen policy that KL is measured against: as it was at the start, after a warm start; with adapters, the base model."""
        reference = self.learner.reference or self._own_reference
        if reference is None:
            raise TurnwiseError('this run keeps no reference: register what reads it with needs=("model.reference",), or set objective.kl')
        return self.learner.scorer(reference, self.policy.tokenizer)

    def __getitem__(self, name: str) -> Any:
        if name in (POLICY, REFERENCE):
            return self.policy if name == POLICY else self.reference
        if self.learner.critic is not None and name == self.learner.critic.name:
            return self.learner.critic
        if name not in self.auxiliary:
            hint = f"a recipe brings it with [models.{name}]"
            error = unknown_name("model", name, self)
            raise TurnwiseError(f"{error}; {hint}")
        return self.auxiliary[name]

    def __iter__(self) -> Iterator[str]:
        yield from (POLICY, REFERENCE, *self.auxiliary)

    def __contains__(self, name: object) -> bool:
        return name in (POLICY, REFERENCE) or name in self.auxiliary

    def at(self, progress: float) -> None:
        """The progress of the run, from 0 to 1: falling learning rates and the weights of curricula follow it."""
        self.progress = progress
        for model in self.auxiliary.values():
            model.progress = progress

    def update(self, batch: Batch) -> dict[str, float]:
        """Train every model that has a loss; metrics by `NAME/metric`."""
        found: dict[str, float] = {}
        for name, model in self.auxiliary.items():
            if model.trained and isinstance(model.kind, HasLoss):
                found |= {f"{name}/{metric}": value for metric, value in model.update(batch).items()}
        return found

    def follow_policy(self) -> None:
        """The policy has been changed by a warm start: models that started as copies of it are copied again, and so is the reference."""
        for model in self.auxiliary.values():
            if model.starts_from_policy:
                model.follow(self.policy)
        if self._own_reference is not None and not has_adapters(self.learner.model):
            self._own_reference.follow(self.learner.policy)

    # -- memory -------------------------------------------------------------------------------------------------------------------

    def _to_come(self, own: str | None) -> int:
        """Bytes that all models but one will still take on its device; `own` None means the policy."""
        policy = self.learner.policy.device
        device = policy if own is None else self.auxiliary[own].packed.device
        coming: int = 0
        if own is not None and policy == device:
            coming += self.learner.memory.moments_to_come(self.learner.optimiser)
        for name, model in self.auxiliary.items():
            if name != own and model.optimiser is not None and model.packed.device == device:
                coming += model.budget.memory.moments_to_come(model.optimiser)
        return coming

    # -- keeping ------------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint keeps of all auxiliary models: tensors in a group for each, and plain numbers by name."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, model in self.auxiliary.items():
            own, numbers[name] = model.state()
            tensors |= {f"{AUXILIARY}{name}/{key}": tensor for key, tensor in own.items()}
        if self._own_reference is not None:
            weights = self._own_reference.tensors()
            copied = {key: tensor if is_sharded(tensor) else tensor.to("cpu", copy=True) for key, tensor in weights.items()}
            tensors |= {f"{AUXILIARY}{REFERENCE}/{key}": tensor for key, tensor in copied.items()}
        return tensors, numbers

    def like(self, name: str) -> Tensor | None:
        """A tensor that is sharded as the one of this name in a checkpoint; None if that is not sharded."""
        if not name.startswith(AUXILIARY):
            return self.learner.like(name)
        own = name.removeprefix(f"{AUXILIARY}{REFERENCE}/")
        return None if self._own_reference is None else self._own_reference.tensors().get(own)

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, model in self.auxiliary.items():
            if name not in numbers:
                raise TurnwiseError(f"the checkpoint has no state of model {name!r}: it was written by a run without [models.{name}]")
            model.load_state(_group(tensors, name), numbers[name])
        if self._own_reference is not None:
            self._own_reference.load(_group(tensors, REFERENCE))


def _group(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    start = f"{AUXILIARY}{name}/"
    return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
