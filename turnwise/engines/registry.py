"""Engines by name. A custom engine is a class that a recipe names as `path/to/file.py:Class`, or that registers itself:

    @register("mine")
    class Mine(Engine):
        '''One sentence that users see in lists.'''

        def __init__(self, model, tokenizer, max_batch: int, max_length: int, *, stop_token_ids=None, beams: int = 4): …

It derives from `turnwise.engines.Engine` and overrides what it declares there. `declared(name)` tells what an engine declares before one
is made: code that reads a recipe asks that, and never compares names. Keyword-only parameters are its options (`engine.options` in a
recipe), except those that a run gives itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.config.kinds import ENGINE
from turnwise.config.options import Entry, Registry
from turnwise.config.references import is_reference
from turnwise.engines.base import CacheKind, Engine, StopRules
from turnwise.util.errors import TurnwiseError, unknown_name

GIVEN = ("stop_token_ids", "vision")  # given by the run, not options of a recipe

# What the engines of Turnwise declare, side by side. The classes that compute derive from these. No torch is imported here, so that a
# recipe is checked at once.


class Native(Engine):
    """`engines/native/engine.py`."""

    sleeps = True
    past_key_values = True
    cache_kind: CacheKind = "sized"
    fallback = "transformers"
    former_options: Mapping[str, str] = {"switches": "the engine does what is fastest on its GPU; engine.options.graphs is left"}

    @staticmethod
    def approximates(options: Mapping[str, Any]) -> str:
        return "engine.options.cache_dtype=8bit" if options.get("cache_dtype") == "8bit" else ""


class Transformers(Engine):
    """`engines/transformers.py`."""

    images = True
    past_key_values = True


class Vllm(Engine):
    """`engines/vllm/engine.py`."""

    shares_weights = False
    several_gpus = True
    packages = ("vllm",)
    cache_kind: CacheKind = "reserved"
    stop_rules: StopRules = "costly"
    former_options: Mapping[str, str] = {
        "transfer": "weights reach one GPU inside this process, and several (tensor_parallel) through CUDA's handles",
        "update": "responses under way stay in vLLM while weights are replaced",
        "keep_cache": "responses under way continue on keys and values of the new weights",
    }


class OpenAI(Engine):
    """`engines/openai.py`."""

    in_process = False
    shares_weights = False
    trains = False
    stop_rules: StopRules = "none"
    version = -1  # the weights of a server have no known version


class NotImported(Engine):
    """An engine in code of the user's own that is not imported yet: nothing is assumed of it."""

    shares_weights = False


BUILT_IN: Mapping[str, type[Engine]] = {
    "native": Native,  # type: ignore[type-abstract]
    "transformers": Transformers,  # type: ignore[type-abstract]
    "vllm": Vllm,  # type: ignore[type-abstract]
    "openai": OpenAI,  # type: ignore[type-abstract]
}


def _load() -> None:
    """Import the files where the built-in engines register themselves."""
    for module in BUILT_IN:
        importlib.import_module(f"{__package__}.{module}")


engines: Registry[Callable[..., Any]] = Registry("engine", _load, ENGINE)
register = engines.register


def declared(name: str) -> type[Engine]:
    """What an engine declares about itself, by its name in a recipe. Built-in engines are not imported for this, nor is code that the
    recipe names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if is_reference(name):
        entry = engines.known(name)
        return NotImported if entry is None else engine_class(entry)
    return engine_class(engines[name])


def engine_class(entry: Entry[Callable[..., Any]]) -> type[Engine]:
    """The class of an engine; an error if it does not declare what it can."""
    kind = entry.function
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        name = getattr(kind, "__name__", "Mine")
        raise TurnwiseError(f"engine {entry.name}: an engine declares what it can. Write `class {name}(turnwise.engines.Engine)`")
    return kind


def checked(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an engine in a recipe (`engine.options`), checked by its signature."""
    entry, values = engines[name], dict(options)
    known_options = {key: option for key, option in entry.options.items() if key not in GIVEN}
    for key, value in options.items():
        if key in known_options:
            values[key] = known_options[key].check(value, f"engine.options of {name}")
        elif key in (former := engine_class(entry).former_options):
            raise TurnwiseError(f"engine.options of {name}: there is no option {key!r} any more: {former[key]}")
        elif not entry.open:
            raise unknown_name(f"option of the {name} engine (engine.options):", key, known_options)
    return values


def make(entry: Entry[Callable[..., Any]], *parts: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> Engine:
    """An engine made from these parts. Those that the engine does not take are left out."""
    kind = engine_class(entry)
    taken = {name: value for name, value in given.items() if name in entry.options or entry.open}
    return kind(*parts, **taken, **options)
