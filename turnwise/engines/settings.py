"""`[engine]`: the engine that turns prompts into responses."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from turnwise.config.section import Options, Section
from turnwise.engines.base import Engine as EngineClass
from turnwise.engines.registry import declared


class Engine(Section):
    """The engine that turns prompts into responses."""

    name: str = "transformers"
    """native (fast, Llama and Qwen families, shares the learner's weights), transformers (any causal language model), vllm (vLLM on an
    NVIDIA GPU, with a copy of the weights), openai (a server, for evaluation only), or path/to/file.py:Class."""
    url: str | None = None
    """With name=openai: the server's address, for example http://127.0.0.1:8000/v1."""
    model: str | None = None
    """With name=openai: the model's name on the server."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature during training."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability."""
    top_k: int = Field(0, ge=0)
    """Only the k most likely tokens; 0: all."""
    max_tokens: int = Field(512, ge=1)
    """Maximum response length in tokens. Unless given, 64 for the tiny model, and less if the model has no room for it next to a prompt."""
    stop: list[str] = []
    """Stop strings that end a response."""
    max_batch: int = Field(128, ge=1)
    """Maximum number of sequences generated in parallel."""
    sleep: bool = False
    """With name=native on a GPU: release the cache memory while the weights are updated. Decode steps are then captured again in every
    iteration, which takes time; turn it on if the update runs out of memory."""
    options: Options = {}
    """Further options of the engine: `turnwise algos engine NAME` and docs/guides/engines.md explain them. A server's API key is read from
    the environment variable that `key_variable` names (default: OPENAI_API_KEY, if it is set) and is never stored."""

    @property
    def declared(self) -> type[EngineClass]:
        """What the engine declares about itself. Neither a built-in engine nor code that the recipe names is imported for this."""
        return declared(self.name)

    def option(self, name: str) -> Any:
        """The value of an option; None if it is unset or "none"."""
        value = self.options.get(name)
        return None if isinstance(value, str) and value == "none" else value
