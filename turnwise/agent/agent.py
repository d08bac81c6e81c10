"""The agent as a collector uses it: a fresh context for every trajectory, responses read, examples written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.agent.base import Context, Parsed
from turnwise.agent.chat import Chat, log
from turnwise.agent.context import PromptMaker, make_context
from turnwise.agent.parse import Parser
from turnwise.agent.settings import ACT_TOOL, AgentSettings
from turnwise.envs.base import Observation

if TYPE_CHECKING:
    from turnwise.vision import Vision


class Agent:
    """Made once a run. Errors in templates, names and options show here, before anything is played. `vision` is the processor of a model
    that sees; `say` takes one-line notices."""

    def __init__(
        self,
        tokenizer: Any,
        settings: AgentSettings | None = None,
        vision: Vision | None = None,
        say: Callable[[str], None] = log.warning,
    ):
        self.settings = settings or AgentSettings()
        self.maker = PromptMaker(tokenizer, self.settings, vision, say)
        self.parser = Parser(self.settings.style, self.settings.valid, self.settings.tools)
        self.context()

    @property
    def chat(self) -> Chat:
        """The tokenizer with its chat template."""
        return self.maker.chat

    def context(self) -> Context:
        """A context for one trajectory."""
        return make_context(self.settings.context, self.chat.tokenizer, self.settings, self.maker)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens at which an engine should end a response."""
        return self.chat.stop_ids

    def read(self, response_ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
        """A response as text, and parsed. `observation` is the one that the agent answered."""
        text = self.chat.decode(response_ids)
        return text, self.read_text(text, observation)

    def read_text(self, text: str, observation: Observation) -> Parsed:
        """The same for an engine that gives text and no token ids."""
        return self.parser(text, observation.actions)

    def write(self, action: str, thought: str = "") -> list[int]:
        """An answer with this action in the form that the prompt asks for, as token ids with their end: an example to learn from."""
        return self.chat.answer_ids(self._answer(action, thought))

    def _answer(self, action: str, thought: str) -> str:
        if self.settings.style == "whole":
            return action
        if self.settings.style == "text":
            return f"<think>{thought}</think>{action}" if thought else action
        if self.settings.style == "tags":
            return f"<think>{thought}</think><action>{action}</action>" if thought else f"<action>{action}</action>"
        if self.settings.style == "verbs":
            verb, _, words = action.removesuffix("]").partition("[")
            said = f"<{verb}>{words}</{verb}>"
            return f"<think>{thought}</think>{said}" if thought else said
        call = action if self.settings.tools else json.dumps({"name": ACT_TOOL["function"]["name"], "arguments": {"action": action}})
        said = f"<think>{thought}</think>\n" if thought else ""
        return f"{said}<tool_call>\n{call}\n</tool_call>"
