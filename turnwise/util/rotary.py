"""Rotary embeddings whose frequencies depend on the sequence length: dynamic NTK, and longrope as in Phi-3.

transformers takes the length from the largest position in a forward pass. All sequences of a forward pass, in one row or as rows of a
batch, therefore get the frequencies of the longest. Dynamic NTK even keeps those of the longest sequence it has seen, until a short one
arrives, and cached keys keep their old rotation. All of this happens silently. Code that runs such a model asks for the `key` of a length:
only sequences with equal keys may share a forward pass, and a cache is valid only while its key stays the same. Call `reset` before each
forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONG = "longrope"  # one set of frequencies up to the limit, another beyond it
DYNAMIC = "dynamic"  # beyond the limit every length has its own frequencies


@dataclass(frozen=True, slots=True)
class Stretched:
    """One set of frequencies of a rotary module. `prefix` is that of its layer type's buffers, if the module has several sets."""

    module: Any
    prefix: str
    kind: str
    limit: int

    def key(self, length: int) -> int:
        if self.kind == LONG:
            return int(length > self.limit)
        return max(length, self.limit)

    def reset(self) -> None:
        """Restore the module's initial state."""
        if self.kind == DYNAMIC:
            now, original = getattr(self.module, f"{self.prefix}inv_freq"), getattr(self.module, f"{self.prefix}original_inv_freq")
            setattr(self.module, f"{self.prefix}inv_freq", original.to(now.device))
            setattr(self.module, f"{self.prefix}max_seq_len_cached", self.limit)


class Stretching:
    """All of a model's frequencies that depend on the length; empty (and false) for most models."""

    def __init__(self, model: Any):
        self.parts = list(_parts(model))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def key(self, length: int) -> tuple[int, ...]:
        """Equal for lengths with the same frequencies."""
        return tuple(part.key(length) for part in self.parts)

    def reset(self) -> None:
        """Forget the lengths of earlier forward passes."""
        for part in self.parts:
            part.reset()

    def words(self) -> str:
        """A description for messages."""
        return ", ".join(dict.fromkeys(f"{part.kind} beyond {part.limit} tokens" for part in self.parts))


def _parts(model: Any) -> Iterator[Stretched]:
    for module in model.modules():
        own = getattr(module, "rope_type", None)
        for layer_type, name in own.items() if isinstance(own, dict) else [("", own)]:
            if not isinstance(name, str) or (DYNAMIC not in name and name != LONG):
                continue
            prefix = f"{layer_type}_" if layer_type else ""
            if name != LONG:
                yield Stretched(module, prefix, DYNAMIC, int(module.original_max_seq_len))
                continue
            parameters = module.config.rope_parameters
            parameters = parameters[layer_type] if layer_type else parameters
            yield Stretched(module, prefix, LONG, int(parameters["original_max_position_embeddings"]))
