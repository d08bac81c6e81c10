"""What the engines of Turnwise declare, side by side. The classes that compute derive from these. No torch is imported here, so that a
recipe is checked at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.engines.base import CacheKind, Engine, StopRules


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
        "update": "responses under way stay in vLLM while weights are replaced; engine.options.keep_cache is left",
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
