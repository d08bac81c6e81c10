"""The settings of an agent: prompts, contexts and parsing, as in a recipe's `[agent]` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.agent.registry import parsers
from turnwise.config.references import is_reference
from turnwise.util.errors import TurnwiseError, unknown_name

VALID_RULES = ("parsed", "thought", "admissible")
STYLE_OF_PROMPT = {
    "think": "tags",
    "react": "tags",
    "plain": "whole",
    "action": "whole",
    "remind": "whole",
    "tool": "tool",
    "search": "verbs",
    "text": "text",
}

ACT_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Do one action in the environment.",
        "parameters": {
            "type": "object",
            "properties": {"action": {"type": "string", "description": "The action, exactly as the environment takes it."}},
            "required": ["action"],
        },
    },
}


@dataclass(frozen=True)
class AgentSettings:
    """context: `window`, `full`, or another name or file. history: how many past turns a window shows.
    prompt: `think`, `react`, `plain`, `action`, `remind`, `tool`, `search`, `text`, the path of a template, or
    `file.py:NAME` of a text. parse: `tags`, `whole`, `text`, `tool`, `verbs`, another name or file, or `auto` (what the prompt asks for).
    valid: what a valid response needs: `parsed`, `thought` (also a closed <think> before the action), or `admissible`.
    show_actions: list the admissible actions in the prompt, except `hide_actions`. system: a system message, none if empty.
    max_prompt_tokens: the maximum prompt length. template_options: for the model's chat template, e.g. {"enable_thinking": False}.
    images: show the environment's images to a model that can see them.
    instructions: of the environment, shown at the start. tools: JSON schemas of the environment's own tools (prompt `tool`); none means
    one tool `act` that takes the action as text. options: for a custom context."""

    context: str = "window"
    history: int = 2
    prompt: str = "think"
    parse: str = "auto"
    valid: str = "parsed"
    show_actions: bool = True
    hide_actions: tuple[str, ...] = ("help",)
    system: str = ""
    max_prompt_tokens: int = 2048
    template_options: Mapping[str, Any] = field(default_factory=dict)
    images: bool = True
    instructions: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parse != "auto" and not is_reference(self.parse) and self.parse not in parsers:
            raise unknown_name("way to parse", self.parse, (*parsers.names(), "auto"))
        if self.valid not in VALID_RULES:
            raise unknown_name("rule for valid responses", self.valid, VALID_RULES)
        if self.history < 0:
            raise TurnwiseError(f"agent: history is the number of past turns to show, 0 or more, not {self.history}")
        if self.max_prompt_tokens < 1:
            raise TurnwiseError(f"agent: max_prompt_tokens must be at least 1, not {self.max_prompt_tokens}")
        if self.valid == "thought" and self.style == "tool":
            raise TurnwiseError("agent: valid='thought' requires <think> tags, which a tool call may lack. Use valid='parsed'")

    @property
    def style(self) -> str:
        """How responses are parsed."""
        return self.asked_style if self.parse == "auto" else self.parse

    @property
    def asked_style(self) -> str:
        """How the prompt asks for the action."""
        return STYLE_OF_PROMPT.get(self.prompt, "tags")

    @property
    def written_style(self) -> str:
        """How an example answer is written: what is parsed, or, for a parser of the user's own, what the prompt asks for."""
        return self.asked_style if is_reference(self.style) else self.style

    @property
    def offered_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that are described to the model; none unless responses are tool calls."""
        if self.style != "tool":
            return ()
        return self.tools or (ACT_TOOL,)
