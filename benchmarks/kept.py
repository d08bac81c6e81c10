"""What a learner keeps of its largest micro-batch, so that a measured peak of memory can be compared with the prediction."""

from __future__ import annotations

from typing import Any

from turnwise.learn import Learner


def watch(learner: Learner) -> dict[str, Any]:
    """A record that updates of this learner fill: the tokens of the largest micro-batch, how many of them were sampled, the layers that
    kept attention and MLP, and whether slopes of log-probs were kept. It stays empty if layers of transformers compute."""
    found: dict[str, Any] = {}
    memory, fused = learner.memory, learner.policy.fused
    prepare, layers = memory.prepare, memory._shape.layers

    def watched(tokens: int, rows: int = 0) -> None:
        prepare(tokens, rows)
        if fused is not None and tokens > found.get("tokens", 0):
            kept = {name: min(getattr(fused.kept, name), layers) for name in ("attention", "mlp", "inputs")}
            found.update(tokens=tokens, sampled=rows, **kept, slopes=memory.keeps_slopes)

    memory.prepare = watched  # type: ignore[method-assign]
    return found
