"""`[agent]`: prompts, contexts and parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from turnwise.agent.registry import parsers
from turnwise.config.references import is_reference
from turnwise.config.section import Options, Section, Stored
from turnwise.util.errors import unknown_name

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


class AgentSettings(Section):
    """How prompts are built and responses are parsed."""

    context: str = "window"
    """window (a separate prompt per turn with the last `history` turns), full (the dialogue grows), another name that `turnwise algos
    context` lists, package.module:Class or path/to/file.py:Class."""
    history: int = Field(2, ge=0)
    """With context=window: how many earlier observations and actions a prompt shows."""
    prompt: str = "think"
    """A prompt template: think, react, plain, action, remind, tool, search, text, the path of your own template, or
    path/to/file.py:NAME of a template in a text."""
    parse: str = "auto"
    """How the action is extracted: from <action> tags, the first line of the response (whole), all of it (text), the model's native tool
    call (tool), or tags named after the action's verb (verbs); auto: what the prompt asks for; or path/to/file.py:function."""
    valid: Literal["parsed", "thought", "admissible"] = "parsed"
    """What a valid turn needs: a parsable response (the paper), also a thought before it, or an admissible action."""
    show_actions: bool = True
    """List the admissible actions in the prompt, if the environment knows them."""
    hide_actions: list[str] = ["help"]
    """Admissible actions that the prompt does not list and that random play in a warm start does not choose; `*` matches any text."""
    system: str = ""
    """A system message; empty: none."""
    instructions: str | None = None
    """Instructions at the start of a sequence; none: those of the environment, empty: nothing."""
    tools: Annotated[list[dict[str, Any]] | str | None, Stored] = None
    """With prompt=tool: JSON schemas of tools, or the path of a JSON file with a list of them; none: the `tools` of the
    environment or, if it has none, one tool `act` that takes the action as text. Calls of other tools reach the environment as JSON."""
    max_prompt_tokens: int = Field(2048, ge=1)
    """Longer prompts lose their oldest history; if even the shortest form is too long, the attempt ends. Unless given, less if the model
    has no room for it next to a response."""
    template_options: Annotated[dict[str, Any], Stored] = {}
    """Options of the model's chat template, for example enable_thinking = false."""
    options: Options = {}
    """Options of your own context."""

    @model_validator(mode="after")
    def _consistent(self) -> AgentSettings:
        if self.parse != "auto" and not is_reference(self.parse) and self.parse not in parsers:
            raise ValueError(str(unknown_name("way to parse", self.parse, (*parsers.names(), "auto"))))
        if self.valid == "thought" and self.style == "tool":
            raise ValueError("valid='thought' requires <think> tags, which a tool call may lack. Use valid='parsed'")
        return self

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The tools whose schemas are given here."""
        return tuple(self.tools) if isinstance(self.tools, list) else ()

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
        return self.schemas or (ACT_TOOL,)
