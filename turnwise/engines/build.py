"""An engine from a recipe, on the learner's own weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnwise.config import Config
from turnwise.engines.base import Engine


def build_engine(config: Config, model: Any, tokenizer: Any, stop_ids: Sequence[int], say: Callable[[str], None]) -> Engine:
    """The engine that the recipe names; a model that the native engine does not know is served by transformers, with a notice."""
    own = config.engine
    longest = config.agent.max_prompt_tokens + own.max_tokens
    if own.name == "native":
        from turnwise.engines.native import NativeEngine, supports

        reason = supports(model)
        if reason is None:
            return NativeEngine(model, tokenizer, own.max_batch, longest, stop_token_ids=stop_ids, **own.options)
        say(f"the native engine does not take this model ({reason}): the transformers engine serves it")
    from turnwise.engines.transformers import TransformersEngine

    return TransformersEngine(model, tokenizer, own.max_batch, longest, stop_token_ids=stop_ids, **own.options)
