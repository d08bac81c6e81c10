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
from turnwise.util.errors import unknown_name

GIVEN = ("stop_token_ids", "vision")  # given by the run, not options of a recipe


def _load() -> None:
    """Import the files where the built-in engines register themselves."""
    for module in ("native", "transformers", "openai", "vllm"):
        importlib.import_module(f"{__package__}.{module}")


engines: Registry[Callable[..., Any]] = Registry("engine", _load, ENGINE)
register = engines.register


def checked(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an engine in a recipe (`engine.options`), checked by its signature."""
    entry, found = engines[name], dict(options)
    known = {key: option for key, option in entry.options.items() if key not in GIVEN}
    for key, value in options.items():
        if key in known:
            found[key] = known[key].check(value, f"engine.options of {name}")
        elif not entry.open:
            raise unknown_name(f"option of the {name} engine (engine.options):", key, known)
    return found


def make(entry: Entry[Callable[..., Any]], *parts: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """An engine made from these parts. Those that the engine does not take are left out."""
    taken = {name: value for name, value in given.items() if name in entry.options or entry.open}
    return entry.function(*parts, **taken, **options)
