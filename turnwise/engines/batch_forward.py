"""Forward passes of the transformers engine: rows of different lengths as one padded batch, and prompts with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.agent.vision import Vision
from turnwise.data.images import Picture
from turnwise.engines.batch_cache import BatchCache, empty_cache
from turnwise.engines.module import evaluating, forward_parameters
from turnwise.util.errors import TurnwiseError
from turnwise.util.rotary import Stretching

ADVICE = "Use another model, or the vLLM engine (engine.name=vllm) if vLLM serves it"
LARGEST_NOISE = 1e-3  # of the largest logit, in float32: more than that is not rounding


class BatchForward:
    """Runs a model over batches of rows. `vision` is the processor of a vision-language model; `stretching` knows whether the rotary
    frequencies depend on the length."""

    def __init__(self, model: Any, vision: Vision | None):
        self.model, self.vision = model, vision
        self.stretching = Stretching(model)
        self._takes = forward_parameters(model)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def read(self, ids: list[list[int]], past: BatchCache | None, shifts: Sequence[int] = ()) -> tuple[Tensor, BatchCache]:
        """The logits after the last token of every row, and the cache with the tokens in it. Shorter rows are padded on the left."""
        device = self.device
        added = [len(row) for row in ids]
        new, width = max(added), past.width if past is not None else 0
        had = torch.tensor(past.lengths if past is not None else [0] * len(ids), device=device)[:, None]
        padding = new - torch.tensor(added, device=device)[:, None]
        old_column, new_column = torch.arange(width, device=device), torch.arange(new, device=device)
        mask = torch.cat([old_column >= width - had, new_column >= padding], dim=1)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([[0] * (new - len(row)) + row for row in ids], device=device),
            "attention_mask": mask.long(),
            "past_key_values": past.cache if past is not None else empty_cache(self.model.config),
            "use_cache": True,
        }
        if "position_ids" in self._takes:
            shift = torch.tensor(shifts, device=device)[:, None] if any(shifts) else 0
            inputs["position_ids"] = (had + new_column - padding).clamp(min=0) + shift
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 1
        self.stretching.reset()
        output = self.model(**inputs)
        if past is None:
            past = BatchCache(output.past_key_values, [0] * len(ids), 0)
        past.cache = output.past_key_values
        past.grow(added)
        logits = output.logits[:, -1]
        return logits if self.vision is None else self.vision.silence(logits), past

    def look(self, ids: list[list[int]], images: list[Sequence[Picture]]) -> tuple[Tensor, BatchCache, list[int]]:
        """The same for whole rows with images; also how far the positions after the images are from the count of tokens."""
        assert self.vision is not None
        inner = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        inputs, shifts = self.vision.inputs(inner, ids, images)
        self.stretching.reset()
        output = self.model(**inputs, use_cache=True, **({"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}))
        cache = BatchCache(output.past_key_values, [0] * len(ids), 0)
        cache.grow([len(row) for row in ids])
        return self.vision.silence(output.logits[:, -1]), cache, shifts


def check_batches(model: Any) -> None:
    """Reports a model that does not give the same if rows are padded and continued from a cache. Two short rows are tried once, in float32;
    wrong numbers would be silent."""
    forward, words = BatchForward(model, None), model.get_input_embeddings().weight.shape[0]
    rows, more = [[number % words for number in range(1, end)] for end in (6, 12)], 3 % words
    if len({forward.stretching.key(length) for length in range(1, 13)}) > 1:
        return  # such rows never run together
    try:
        with evaluating(model), torch.no_grad():
            first, cache = forward.read(rows, None)
            found = torch.stack([first, forward.read([[more]] * 2, cache)[0]], dim=1)
            alone = [model(input_ids=torch.tensor([[*row, more]], device=forward.device), use_cache=False).logits[0, -2:] for row in rows]
    except (TurnwiseError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TurnwiseError(f"engine: {type(model).__name__} cannot be sampled by the transformers engine ({reason}). {ADVICE}") from error
    wanted = torch.stack(alone)
    if not wanted.isfinite().all():
        return  # diverged weights, which are reported as what they are
    gap = ((found - wanted).abs().max() / wanted.abs().max()).item()
    if not gap <= LARGEST_NOISE:
        raise TurnwiseError(
            f"engine: the logits of {type(model).__name__} differ by {gap:.2g} if prompts of two lengths are read together and continued "
            f"from its cache, so the transformers engine would sample something else. {ADVICE}"
        )
