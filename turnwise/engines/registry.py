"""Engines by name. A custom engine is a class that a recipe names as `path/to/file.py:Class`, or that registers itself:

    @register("mine")
    class Mine:
        '''One sentence that users see in lists.'''

        def __init__(self, model, tokenizer, max_batch: int, max_length: int, *, stop_token_ids=None, beams: int = 4): …

It has the methods of `turnwise.engines.Engine`. Keyword-only parameters are its options (`engine.options` in a recipe), except those that
a run gives itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.config.kinds import ENGINE
from turnwise.config.options import Entry, Registry

GIVEN = ("stop_token_ids", "vision")  # given by the run, not options of a recipe


def _load() -> None:
    """Import the files where the built-in engines register themselves."""
    for module in ("native", "transformers", "openai", "vllm"):
        importlib.import_module(f"{__package__}.{module}")


engines: Registry[Callable[..., Any]] = Registry("engine", _load, ENGINE)
register = engines.register


def make(entry: Entry[Callable[..., Any]], *parts: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """An engine made from these parts. Those that the engine does not take are left out."""
    taken = {name: value for name, value in given.items() if name in entry.options or entry.open}
    return entry.function(*parts, **taken, **options)
