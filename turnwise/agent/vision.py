"""A vision-language model's processor, as contexts, engine and learner use it: images in, token ids and pixel tensors out.

Everything that differs between models stays inside the processor that comes with each: how many tokens an image takes, how its pixels are
split, which tensors the model needs. This module contains only what every component must agree on:

- Image tokens are never sampled. A sampled image token would refer to an image that does not exist, so engine and learner both remove that
  token from the distribution, and their log-probs agree.
- Positions are passed explicitly. Some models place an image's tokens on a grid and store, in the module, by how much that shifts what
  follows; with several rows in progress that stored value may belong to another row. We read the shift and keep it with the row.
- A text without images is tokenised by the tokenizer only, as for any other model.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.data.images import Picture, picture
from turnwise.util.errors import TurnwiseError

NEVER = -1e9  # a logit that no softmax gives any probability; finite, so that 0 · it is 0
CACHED_BYTES = 512 * 2**20  # of prepared pixels
CACHED_TEXTS = 1024  # prompts whose tokens are cached: a group starts with the same one


class Vision:
    """`processor` is what `AutoProcessor` loads: a tokenizer and an image processor that know each other."""

    def __init__(self, processor: Any):
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.image_token_id = _image_token_id(processor)
        self._cache: OrderedDict[tuple[str, ...], dict[str, Tensor]] = OrderedDict()
        self._cached = 0
        self._encoded: OrderedDict[tuple[str, tuple[str, ...]], list[int]] = OrderedDict()
        self.slot, self._token_types = self._try()

    @property
    def never_said(self) -> tuple[int, ...]:
        """Tokens that represent an image: no response contains one."""
        return (self.image_token_id,)

    @property
    def chat_template(self) -> str | None:
        """The chat template, wherever the model's files store it."""
        return getattr(self.processor, "chat_template", None) or getattr(self.tokenizer, "chat_template", None)

    def _try(self) -> tuple[str, tuple[str, ...]]:
        """The placeholder text of an image before it is expanded to tokens, and the inputs that give the kind of each token."""
        samples = [picture(np.full((32, 32, 3), shade, np.uint8)) for shade in (0, 128)]
        reasons = []
        for slot in (getattr(self.processor, name, None) for name in ("boi_token", "image_token")):
            if not isinstance(slot, str):
                continue
            try:
                made = self._process(slot * 2, samples)
            except (ValueError, TypeError, IndexError, RuntimeError) as error:
                reasons.append(f"{slot}: {error}")
                continue
            ids = made["input_ids"]
            kinds = tuple(n for n, x in made.items() if n.endswith("token_type_ids") and tuple(x.shape) == tuple(ids.shape))
            is_image = ids == self.image_token_id
            if is_image.any() and all(bool((made[name].bool() == is_image).all()) for name in kinds):
                return slot, kinds
            reasons.append(f"{slot}: its tokens cannot be distinguished from text")
        name = type(self.processor).__name__
        raise TurnwiseError(f"the processor {name} puts images into prompts in an unknown way ({'; '.join(reasons) or 'none'})")

    def _process(self, text: str, pictures: Sequence[Picture]) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self.processor(
            text=[text], images=[[each.pixels for each in pictures]], add_special_tokens=False, return_tensors="pt"
        )
        return made

    def encode(self, text: str, pictures: Sequence[Picture]) -> list[int]:
        """Token ids of a text in which the chat template has left a placeholder for each of these images."""
        names = tuple(each.name for each in pictures)
        if (text, names) not in self._encoded:
            try:
                made = self._process(text, pictures)
            except (ValueError, TypeError, IndexError, RuntimeError) as error:
                raise TurnwiseError(f"the model's processor fails on a prompt with {len(pictures)} images: {error}") from error
            self._remember(names, made)
            self._encoded[text, names] = made["input_ids"][0].tolist()
            if len(self._encoded) > CACHED_TEXTS:
                self._encoded.popitem(last=False)
        self._encoded.move_to_end((text, names))
        return list(self._encoded[text, names])

    def tensors(self, pictures: Sequence[Picture]) -> Mapping[str, Tensor]:
        """The pixel inputs of one sequence with these images, on the CPU."""
        names = tuple(each.name for each in pictures)
        if names not in self._cache:
            return self._remember(names, self._process(self.slot * len(pictures), pictures))
        self._cache.move_to_end(names)
        return self._cache[names]

    def _remember(self, names: tuple[str, ...], made: Mapping[str, Any]) -> Mapping[str, Tensor]:
        if names in self._cache:
            return self._cache[names]
        about_tokens = {"input_ids", "attention_mask", *(name for name in made if name.endswith("token_type_ids"))}
        result = {name: value for name, value in made.items() if name not in about_tokens and isinstance(value, Tensor)}
        self._cache[names] = result
        self._cached += _bytes(result)
        while self._cached > CACHED_BYTES and len(self._cache) > 1:
            self._cached -= _bytes(self._cache.popitem(last=False)[1])
        return result

    def kind(self, length: int, pictures: Sequence[Picture]) -> Hashable:
        """Sequences of one kind can be computed side by side without padding: the same length, and the same number and sizes of images."""
        if not pictures:
            return length
        return length, len(pictures), *((name, tensor.shape[1:]) for name, tensor in self.tensors(pictures).items())

    def inputs(self, causal: Any, ids: Any, pictures: Sequence[Sequence[Picture]]) -> tuple[dict[str, Any], list[int]]:
        """The forward's inputs for whole sequences of one kind, `ids` [sequences, tokens], each with its images; and by how much
        the positions after each are shifted. `causal` is the model itself, without any wrapper."""
        weight = causal.get_input_embeddings().weight
        rows = torch.as_tensor(ids, device=weight.device)
        inputs: dict[str, Any] = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
        counted = torch.arange(rows.shape[1], device=weight.device).expand_as(rows)
        if not pictures[0]:
            return inputs | {"position_ids": counted}, [0] * len(rows)
        taken = inspect.signature(causal.forward).parameters
        parts = [self.tensors(own) for own in pictures]
        for name in taken.keys() & parts[0].keys():
            tensor = torch.cat([part[name] for part in parts])
            inputs[name] = tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else None)
        kind = (rows == self.image_token_id).long()
        inputs |= {name: kind for name in self._token_types if name in taken}
        grid = getattr(causal.base_model, "get_rope_index", None)
        if grid is None:
            return inputs | {"position_ids": counted}, [0] * len(rows)
        wanted = inspect.signature(grid).parameters
        places, shifts = grid(**{name: value for name, value in inputs.items() if name in wanted})
        return inputs | {"position_ids": places}, shifts.flatten().tolist()

    def silence(self, logits: Tensor) -> Tensor:
        """Logits, float32, from which no image token can be drawn."""
        quiet = logits.float().clone()
        quiet[..., list(self.never_said)] = NEVER
        return quiet


def _image_token_id(processor: Any) -> int:
    result = getattr(processor, "image_token_id", None)
    token = getattr(processor, "image_token", None)
    if result is None and isinstance(token, str):
        result = processor.tokenizer.convert_tokens_to_ids(token)
    if result is None:
        raise TurnwiseError(f"the processor {type(processor).__name__} does not name its image token, so images cannot be put into prompts")
    return int(result)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
