"""Recipes whose engine samples from a policy that is not quite the learner's: their loss is corrected with importance weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnwise.config.schema import Config


def truncated(config: Config) -> Config:
    """The recipe with truncated importance weights, unless it names another correction, and old log-probs of the learner: the weights
    compare them with the engine's."""
    objective: dict[str, Any] = {"importance": "truncate"} if config.objective.importance == "none" else {}
    return config.model_copy(
        update={
            "objective": config.objective.model_copy(update=objective),
            "learner": config.learner.model_copy(update={"old_logprobs": "learner"}),
        }
    )


def with_8bit_cache(config: Config, say: Callable[[str], None] | None = None) -> Config:
    """The recipe as it runs with its engine's cache: corrected, if keys and values are stored in 8 bits."""
    if config.engine.name != "native" or config.engine.options.get("cache_dtype") != "8bit":
        return config
    found = truncated(config)
    if found != config and say is not None:
        was = config.learner.old_logprobs
        say(
            f"engine.options.cache_dtype=8bit: the engine samples from a slightly different policy, so the loss has importance weights "
            f"(objective.importance={found.objective.importance}, learner.old_logprobs=learner"
            + (f" instead of {was})" if was not in (None, "learner") else ")")
        )
    return found
