"""The limits of length that a recipe leaves open: they follow from the model and from each other.

A prompt and its response fit into the model together. The tiny model is made as long as that takes; a pretrained model in a folder says
how long it is. What a recipe gives is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROMPT, RESPONSE = 2048, 512  # tokens, where the model has room for them
TINY_LENGTH = 1024  # at least; its positions are rotations, so that it also takes more than it was made for
TINY_RESPONSE = 128  # a model that starts from scratch says what its warm start shows: an action, or a call of a tool
LONGEST_FILE = 2**20  # bytes of a model's config.json


def with_limits(values: Any) -> Any:
    """A recipe's plain values, with the limits that it leaves open or sets to "none"."""
    if not isinstance(values, Mapping) or not all(isinstance(values.get(name, {}), Mapping) for name in ("agent", "engine", "model")):
        return values
    agent, engine, model = (dict(values.get(name, {})) for name in ("agent", "engine", "model"))
    path, tiny = _given(model, "path"), model.get("tiny", {})
    if not isinstance(tiny, Mapping):
        return values
    served = engine.get("name") == "openai"  # by a server with limits of its own
    scratch = path is None and not served
    prompt, response, length = _given(agent, "max_prompt_tokens"), _given(engine, "max_tokens"), _given(tiny, "max_length")
    if not all(limit is None or isinstance(limit, int) for limit in (prompt, response, length)):
        return values  # whoever reads the recipe says what is wrong with it
    room = length if scratch else None if served else _positions(path)
    if response is None:
        response = TINY_RESPONSE if scratch else RESPONSE
        response = response if room is None else max(1, min(response, room // 4 if prompt is None else room - prompt))
    if prompt is None:
        prompt = PROMPT if room is None else max(8, min(PROMPT, room - response))
    agent["max_prompt_tokens"], engine["max_tokens"] = prompt, response
    if scratch:
        model["tiny"] = {**tiny, "max_length": max(TINY_LENGTH, prompt + response) if length is None else length}
    elif "max_length" in tiny and length is None:
        model["tiny"] = {key: value for key, value in tiny.items() if key != "max_length"}
    return {**values, "agent": agent, "engine": engine, "model": model}


def _given(section: Mapping[str, Any], key: str) -> Any:
    value = section.get(key)
    return None if value == "none" else value


def _positions(path: Any) -> int | None:
    """How many tokens a pretrained model in a folder takes, as its config.json says; None if that is not known."""
    if not isinstance(path, str):
        return None
    try:
        with (Path(path).expanduser() / "config.json").open("rb") as file:
            own = json.loads(file.read(LONGEST_FILE))
        own = own.get("text_config") or own
        positions = own.get("max_position_embeddings", own.get("n_positions"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return max(positions, TINY_LENGTH) if isinstance(positions, int) else None  # the short ones are tiny models, which take more
