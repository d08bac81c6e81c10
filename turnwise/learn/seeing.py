"""A vision-language model as the learner uses it: each sequence goes through the model's own forward, with the pixels of its images.

Packing sequences into one row would have to follow every model's own placement of images, and a mistake there would be silent. So only
sequences of one kind (the same length, images of the same sizes) run together, as rows without padding; others run one after another.
Pixels are prepared once for each list of images and kept, so the members of a group and the epochs of an update share them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnwise.agent.vision import NEVER, Vision
from turnwise.learn.forward import PackedModel, asked, state_of
from turnwise.learn.logprobs import Head
from turnwise.learn.packing import Packed


class SeeingModel(PackedModel):
    """`vision` is the model's processor, the one that made the prompts."""

    def __init__(self, model: nn.Module, vision: Vision):
        self.vision = vision
        super().__init__(model, fused=False)
        self.never_said = vision.never_said

    def like(self, model: nn.Module) -> PackedModel:
        return SeeingModel(model, self.vision)

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
