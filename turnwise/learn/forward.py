"""A packed forward pass through a causal language model of transformers.

Sequences follow one another in a single row, without padding. Positions restart at each, and attention stays inside each: a custom
attention function, registered with transformers, works on one sequence at a time, so the cost is the sum of the squared lengths and there
is no row-by-row mask. On a GPU in half precision it is one call of torch's variable-length kernel. There, and on a CPU in float32, models
of known families run through our layers (`turnwise.learn.fused`), which replace the modules and share their parameters.

Models differ, and a leak between sequences would be silent. So every model is tried once with two short sequences: the output of the
second must not depend on the first, nor on the first one's positions. A model that fails (state-space layers, custom attention, logit
caps inside the attention, rotary frequencies that depend on the length) is run one sequence at a time with its own attention instead:
slower but correct. Its output layer is compared with ours in the same trial.

A vision-language model (`VisionModel`) is not packed: packing would have to follow every model's own placement of images.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from turnwise.agent.vision import NEVER, Vision
from turnwise.learn.device import to_device
from turnwise.learn.fused import FusedStack, reason_against
from turnwise.learn.logprobs import Head, token_logprobs
from turnwise.learn.packing import Packed, starts_of
from turnwise.learn.weights import HALF
from turnwise.util.errors import TurnwiseError
from turnwise.util.rotary import Stretching

T = TypeVar("T")
NAME = "turnwise_packed"
MAX_KERNEL_HEAD = 256  # the largest head that the variable-length kernel takes
LARGEST_NOISE = 1e-3  # of the largest hidden value: more than that is not rounding


class NotPackable(Exception):
    """This model's attention needs something that the packed attention does not support."""


@dataclass(slots=True)
class Borders:
    """Where sequences start in a row: for Python, and for a kernel."""

    lengths: list[int]
    offsets: Tensor  # int32, on the device
    used: bool = False  # whether an attention layer has read them


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    borders: Borders | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each sequence of one row. Shapes in: [1, heads, tokens, size]; out: [1, tokens, heads, size]."""
    wanted = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if borders is None or wanted:
        raise NotPackable(f"attention with {', '.join(wanted)}" if wanted else "the boundaries do not reach the attention layers")
    borders.used = True
    fits = query.is_cuda and query.dtype in HALF and query.shape[-1] == value.shape[-1] <= MAX_KERNEL_HEAD
    if dropout == 0 and fits and _varlen_attention() is not None:
        return _kernel(query, key, value, scaling, sliding_window, borders)[None], None
    parts = zip(*(x.split(borders.lengths, dim=2) for x in (query, key, value)), strict=True)
    outputs = [_one(q, k, v, dropout, scaling, sliding_window) for q, k, v in parts]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, packed_attention)


def _one(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None, window: int | None) -> Tensor:
    length, mask = query.shape[2], None
    if window is not None and length > window:
        distance = torch.arange(length, device=query.device)[:, None] - torch.arange(length, device=query.device)
        mask = (distance >= 0) & (distance < window)
    shared = query.shape[1] != key.shape[1]  # several query heads read one key head
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling, is_causal=mask is None, enable_gqa=shared
    )


def _kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, borders: Borders) -> Tensor:
    attend, (q, k, v) = _varlen_attention(), (x[0].transpose(0, 1) for x in (query, key, value))
    shares: dict[str, Any] = {}
    if q.shape[1] != k.shape[1]:  # several query heads read one key head: an option of newer versions of the kernel
        if "enable_gqa" in inspect.signature(attend).parameters:
            shares = {"enable_gqa": True}
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    longest = max(borders.lengths)
    left = -1 if window is None or window >= longest else window - 1
    out: Tensor = attend(q, k, v, borders.offsets, borders.offsets, longest, longest, scale=scaling, window_size=(left, 0), **shares)
    return out


def _varlen_attention() -> Any:
    """torch's kernel for ragged batches, if this torch has one that takes windows; otherwise None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "window_size" in inspect.signature(varlen_attn).parameters else None


def has_adapters(model: Any) -> bool:
    """Whether peft has wrapped a model."""
    return hasattr(model, "disable_adapter")


class PackedModel:
    """A causal language model that takes packed sequences. `model` may be wrapped by peft; weights are shared with it, not copied."""

    never_sampled: tuple[int, ...] = ()  # tokens that no response can contain

    def __init__(self, model: nn.Module, fused: bool | None = None):
        """`fused` requests our layers, or forbids them; None: if they are faster, that is, on a GPU in half precision, and on a CPU in
        float32."""
        self.outer, self._wanted = model, fused
        self.causal: Any = model.get_base_model() if has_adapters(model) else model
        self.backbone: Any = getattr(self.causal, "base_model", None)
        if self.backbone is None or self.backbone is self.causal:
            raise TurnwiseError(
                f"{type(model).__name__} is not a causal language model of transformers: it has no inner model under its head"
            )
        self.fused: FusedStack | None = None
        self.sharded: Any = None  # how several processes compute with it (`turnwise.learn.ranks`)
        self.stretching = Stretching(self.backbone)
        self.packs = self._try()
        self._fuse(fused)

    def _fuse(self, wanted: bool | None) -> None:
        """Use our layers if they are wanted, known, and give what the model's own layers give."""
        weight = self.causal.get_input_embeddings().weight
        on_cpu_in_full = all(own.dtype == torch.float32 and own.device.type == "cpu" for own in self.causal.parameters())
        faster, name = _on_gpu_in_half(weight) or on_cpu_in_full, type(self.causal).__name__
        if not (wanted or (wanted is None and faster and self.packs)):
            return
        if reason := reason_against(self.outer):
            if wanted:
                raise TurnwiseError(f"{name} cannot run through fused layers: {reason}")
            warnings.warn(not_taken(name, reason), stacklevel=1)  # from one place, so that a copy of the model does not repeat it
            return
        stack = FusedStack(self.causal)
        gap = self._try_fused(stack)
        if not gap <= (0.1 if weight.dtype in HALF else 1e-3):
            self.refuse_fused(gap)

    def _try_fused(self, stack: FusedStack) -> float:
        """From now on use our layers. Returns how much they differ from the model's own."""
        ids, position, lengths = np.arange(1, 17) % len(self.causal.get_input_embeddings().weight), _places(11, 5), [11, 5]
        with torch.no_grad(), self.attention():
            wanted = self._hidden(ids, position, lengths)
            self.fused = stack
            gap: float = ((self._hidden(ids, position, lengths) - wanted).norm() / wanted.norm()).item()
        return gap

    def try_sharded(self, dtype: torch.dtype) -> float:
        """Use our layers with weights that several processes share, which call this together. `dtype` is what they compute in. Returns how
        much our layers differ from the model's own."""
        with torch.no_grad():
            return self.inside(lambda: self._try_fused(FusedStack(self.causal, dtype)))

    def recompute(self) -> None:
        """From now on, the model's own layers keep their inputs only. Newer releases of transformers have another
        name for it."""
        causal = self.causal
        enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
        enable({"use_reentrant": False})

    def refuse_fused(self, gap: float) -> None:
        """Our layers differ too much."""
        self.fused = None
        warnings.warn(f"{type(self.causal).__name__}: fused layers differ by {gap:.2g} from its own, which are used", stacklevel=4)

    @property
    def head(self) -> Head:
        """The output layer."""
        return Head.of(self.causal)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.causal.parameters()).device
        return device

    def like(self, model: nn.Module) -> PackedModel:
        """Another model, run in the same way."""
        return PackedModel(model, fused=False if self._wanted is False else None)

    def inside(self, work: Callable[[], T]) -> T:
        """Call a function that computes with the weights: if they are sharded, they are whole inside."""
        if self.sharded is None:
            return work()
        found: T = self.sharded.inside(work)
        return found

    def hidden(self, packed: Packed, places: Any = None, layer: int = -1) -> Tensor:
        """The last hidden state of every token, [tokens, size], or of the tokens at `places` (increasing indices, each once). Keep
        `attention()` open until the backward pass is over. `layer` counts as in a model's `hidden_states`: -1 is the last one, after its
        norm, and -2 what the layer before gave."""
        if packed.images is not None:
            raise TurnwiseError("these trajectories show images, and the learner has no processor for them: Learner(…, vision=Vision(…))")
        self.check_words(packed)
        return self._hidden(packed.ids, packed.position, packed.lengths.tolist(), places, layer)

    def check_words(self, packed: Packed) -> None:
        """Raises an error if a token is unknown to the model."""
        known = self.causal.get_input_embeddings().weight.shape[0]
        if len(packed.ids) and packed.ids.max() >= known:
            raise TurnwiseError(
                f"token id {packed.ids.max()} is unknown to the model, which knows 0 to {known - 1}: was another tokenizer used?"
            )

    @contextmanager
    def attention(self) -> Iterator[None]:
        """Inside, the model uses the packed attention; afterwards it is as it was.

        It covers the backward pass too, because gradient checkpointing runs the layers a second time there.
        """
        configs: dict[int, Any] = {}
        if self.fused is not None:
            self.fused.update()
        if self.packs:
            for module in self.backbone.modules():
                config = getattr(module, "config", None)
                if hasattr(config, "_attn_implementation"):
                    configs.setdefault(id(config), config)
        before = [(config, config._attn_implementation) for config in configs.values()]
        try:
            for config, _ in before:
                config._attn_implementation = NAME
            yield
        finally:
            for config, implementation in before:
                config._attn_implementation = implementation

    def _hidden(self, ids: Any, position: Any, lengths: list[int], places: Any = None, layer: int = -1) -> Tensor:
        row, where = (to_device(x, self.device) for x in (ids, position))
        chosen = None if places is None else to_device(places, self.device)
        borders = Borders(lengths, to_device(starts_of(lengths), self.device, torch.int32))
        if self.fused is not None and layer == -1:
            return self.fused.hidden(row, where, lengths, borders.offsets, chosen)
        if self.packs:
            found = self.backbone(input_ids=row[None], position_ids=where[None], use_cache=False, borders=borders, **asked(layer))
            if not borders.used:
                raise NotPackable("it has a custom attention")
            out = state_of(found, layer)[0]
        else:
            pieces = zip(row[None].split(lengths, 1), where[None].split(lengths, 1), strict=True)
            out = torch.cat([self._alone(piece, places, layer) for piece, places in pieces])
        return out if chosen is None else out[chosen]

    def _alone(self, ids: Tensor, position: Tensor, layer: int = -1) -> Tensor:
        """One sequence through the unchanged model, as if it were the first."""
        self.stretching.reset()
        return state_of(self.backbone(input_ids=ids, position_ids=position, use_cache=False, **asked(layer)), layer)[0]

    def _try(self) -> bool:
        """Whether packing keeps sequences separate. Raises an error if the output layer is not the known one."""
        training = self.causal.training
        self.outer.eval()
        try:
            with torch.no_grad():
                self._check_head()
                return self._isolates()
        finally:
            self.stretching.reset()
            self.outer.train(training)

    def _isolates(self) -> bool:
        # by its configuration first: a trial of a few tokens could miss what this type of embedding does to long sequences
        reason = f"its rotary frequencies depend on the length: {self.stretching.words()}" if self.stretching else None
        self.packs = reason is None
        if self.packs:
            try:
                with self.attention():
                    near = self._leak(_places(6), _places(4))
                    reason = near or (self._leak(*trial) if (trial := self._far_places()) is not None else None)
            except torch.OutOfMemoryError:
                raise
            except (NotPackable, TypeError) as error:
                reason = str(error)
            except (AttributeError, LookupError, RuntimeError, ValueError) as error:  # of layers that do not know our attention
                reason = f"its layers fail with our attention: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if reason is not None:
            name = type(self.causal).__name__
            slower = "they run one at a time, which is slower"
            warnings.warn(f"{name} cannot take several sequences in one row ({reason}); {slower}", stacklevel=1)
        return reason is None

    def _leak(self, first: Any, second: Any) -> str | None:
        """What the second of two sequences in a row, at these positions, gets from the first; None if nothing."""
        vocabulary = self.causal.get_input_embeddings().weight.shape[0]
        other, own, length = np.arange(len(first)) % vocabulary, np.arange(len(second), 0, -1) % vocabulary, len(second)
        together, lengths = np.concatenate([first, second]), [len(first), length]
        seen = [self._hidden(np.concatenate([start, own]), together, lengths)[-length:] for start in (other, other[::-1].copy())]
        alone = self._hidden(own, second, [length])
        # Later tokens have no influence, so this is how much the row length alone changes the rounding of this model's products.
        later = np.concatenate([second, _places(len(first))])
        before_others = self._hidden(np.concatenate([own, other]), later, [len(later)])[:length]
        size = alone.abs().max().item()
        exact = 16 * torch.finfo(alone.dtype).eps * size
        noise = min(_distance(before_others, alone), LARGEST_NOISE * size)
        leak, change = _distance(*seen), _distance(seen[0], alone)
        if leak <= exact and change <= 4 * max(exact, noise):
            return None
        return f"another neighbour changes a sequence by {leak:.2g}, and having one at all by {change:.2g}"

    def _far_places(self) -> tuple[Any, Any] | None:
        """Positions of two sequences: the first goes far beyond every length that the model names, and the second stays within. A few
        tokens are enough: rotary embeddings depend on positions only. None if positions are not angles but rows of a table."""
        own = self.causal.config
        configs = [own, own.get_text_config()] if hasattr(own, "get_text_config") else [own]
        named = [int(length) for config in configs for length in _named_lengths(config)]
        tables = [m for m in self.backbone.modules() if isinstance(m, nn.Embedding) and m is not self.causal.get_input_embeddings()]
        turns = any(name.endswith("inv_freq") for name, _ in self.backbone.named_buffers())
        if not named or tables or not turns:
            return None
        return np.asarray([0, 1, 2, 3, 4, 4 * max(named)]), np.linspace(0, min(named) - 1, 4).astype(np.int64)

    def _check_head(self) -> None:
        """Our log-probs against the model's own logits."""
        vocabulary = self.causal.get_input_embeddings().weight.shape[0]
        row = torch.arange(8, device=self.device)[None] % vocabulary
        theirs = self.causal(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1)
        hidden = self.backbone(input_ids=row, use_cache=False).last_hidden_state[0]
        target = theirs.argmax(-1)
        ours, _ = token_logprobs(hidden, Head.of(self.causal), target)
        gap = (ours - theirs.gather(-1, target[:, None])[:, 0]).abs().max().item()
        allowed = 1e-3 if hidden.dtype in (torch.float32, torch.float64) else 0.1
        if not gap <= allowed:
            raise TurnwiseError(
                f"{type(self.causal).__name__}: its log-probs differ by {gap:.3g} from those of its output layer alone. Either its weights "
                "hold numbers that are not finite, or it changes its logits in a way that the learner does not know"
            )


def not_taken(name: str, reason: str) -> str:
    """The notice that a model is trained more slowly than most."""
    return f"{name}: the fused layers do not take this model ({reason}): transformers' own layers train it"


def _on_gpu_in_half(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype in HALF


def asked(layer: int) -> dict[str, bool]:
    """What a model is asked for so that it returns the hidden states of a layer."""
    return {} if layer == -1 else {"output_hidden_states": True}


def state_of(found: Any, layer: int) -> Tensor:
    """A hidden state of what a model returned."""
    state: Tensor = found.last_hidden_state if layer == -1 else found.hidden_states[layer]
    return state


def _named_lengths(config: Any) -> Iterator[int]:
    """Every number of positions that a configuration mentions."""
    rope = getattr(config, "rope_parameters", None) or {}
    for place in (config, *([rope, *rope.values()] if isinstance(rope, dict) else [])):
        for name in ("max_position_embeddings", "original_max_position_embeddings"):
            found = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
            if isinstance(found, (int, float)) and found > 1:
                yield int(found)


def _places(*lengths: int) -> Any:
    return np.concatenate([np.arange(length) for length in lengths])


def _distance(one: Tensor, other: Tensor) -> float:
    largest: float = (one - other).abs().max().item()
    return largest


class VisionModel(PackedModel):
    """`vision` is the model's processor, the one that made the prompts."""

    def __init__(self, model: nn.Module, vision: Vision):
        self.vision = vision
        super().__init__(model, fused=False)
        self.never_sampled = vision.never_said

    def like(self, model: nn.Module) -> PackedModel:
        return VisionModel(model, self.vision)

    @property
    def head(self) -> Head:
        """The output layer, in which image tokens have no probability, as in the engine."""
        own = Head.of(self.causal)
        silent = torch.zeros(len(own.weight), device=own.weight.device)
        silent[list(self.vision.never_said)] = NEVER
        return Head(own.weight, silent if own.bias is None else own.bias + silent, own.scale, own.softcap)

    def hidden(self, packed: Packed, places: Any = None, layer: int = -1) -> Tensor:
        self.check_words(packed)
        images = packed.images if packed.images is not None else ((),) * len(packed)
        alike: dict[Hashable, list[int]] = {}
        for number, length in enumerate(packed.lengths.tolist()):
            alike.setdefault(self.vision.kind(length, images[number]), []).append(number)
        states: dict[int, Tensor] = {}
        for numbers in alike.values():
            ids = np.stack([packed.ids[packed.offsets[n] : packed.offsets[n + 1]] for n in numbers])
            inputs, _ = self.vision.inputs(self.causal, ids, [images[n] for n in numbers])
            self.stretching.reset()
            found = self.backbone(**inputs, use_cache=False, **asked(layer))
            states |= dict(zip(numbers, state_of(found, layer), strict=True))
        out = torch.cat([states[number] for number in range(len(packed))])
        return out if places is None else out[torch.as_tensor(places, device=out.device)]

    def _isolates(self) -> bool:
        return False  # nothing is packed, so nothing can leak
