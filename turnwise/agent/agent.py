"""The agent as a collector uses it: it creates one context per trajectory, parses responses and writes examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.agent.base import Context, Parsed
from turnwise.agent.chat import Chat, log
from turnwise.agent.context import PromptMaker, make_context
from turnwise.agent.control import Marked
from turnwise.agent.parse import Parser
from turnwise.agent.settings import ACT_TOOL, AgentSettings
from turnwise.agent.text import well_formed
from turnwise.data.attempts import Hint
from turnwise.envs.base import Observation
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.agent.vision import Vision


LONGEST_ANSWER = 200_000  # characters of an example; a longer one is a mistake that would cost minutes


class Agent:
    """Created once per run. Errors in templates, names and options are raised here, before anything is played. `vision` is the processor of
    a vision-language model; `say` takes one-line notices."""

    def __init__(
        self,
        tokenizer: Any,
        settings: AgentSettings | None = None,
        vision: Vision | None = None,
        say: Callable[[str], None] = log.warning,
    ):
        self.settings = settings or AgentSettings()
        self.maker = PromptMaker(tokenizer, self.settings, vision, say)
        self.parser = Parser(self.settings.style, self.settings.valid, self.settings.schemas)
        self.context()

    @property
    def chat(self) -> Chat:
        """The tokenizer with its chat template."""
        return self.maker.chat

    def context(self, hint: Hint = "") -> Context:
        """A context for one trajectory. `hint` is a text that its prompts show, or a function of the observation's text."""
        return make_context(self.settings.context, self.chat.tokenizer, self.settings, self.maker.hinting(hint) if hint else self.maker)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens at which an engine should end a response."""
        return self.chat.stop_ids

    def read(self, response_ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
        """A response as text, and parsed. `observation` is the one that the agent responded to."""
        text = self.chat.decode(response_ids)
        return text, self.read_text(text, observation)

    def read_text(self, text: str, observation: Observation) -> Parsed:
        """The same for an engine that returns text without token ids."""
        return self.parser(text, observation.actions)

    def write(self, action: str, thought: str = "", words: str = "") -> list[int]:
        """A response with this action in the form that the prompt asks for, as token ids including the end: an example to learn from. The
        tags have the tokens that a model would sample; action and thought come from outside and never become control tokens. `words` are
        written before the action, where it has tags of its own."""
        if (length := len(action) + len(thought) + len(words)) > LONGEST_ANSWER:
            raise TurnwiseError(
                f"a response of {length:,} characters is too long for an example: the limit is {LONGEST_ANSWER:,}. "
                f"It begins with {(action or thought)[:60]!r}. Check the environment's expert or the recorded attempts"
            )
        return self.chat.answer_ids(self._answer(well_formed(action), well_formed(thought), well_formed(words)))

    def _answer(self, action: str, thought: str, words: str = "") -> Marked:
        style = self.settings.written_style
        mark, said = self.chat.control.mark, f"<think>{self.chat.control.mark(thought)}</think>" if thought else ""
        said += mark(words) if style not in ("whole", "text") else ""
        if style == "whole":
            return mark(action)
        if style == "text":
            return Marked(f"{said}{mark(action)}")
        if style == "tags":
            return Marked(f"{said}<action>{mark(action)}</action>")
        if style == "verbs":
            verb, _, words = action.removesuffix("]").partition("[")
            opening, closing = (tag if tag in self.maker.template.source else mark(tag) for tag in (f"<{verb}>", f"</{verb}>"))
            return Marked(f"{said}{opening}{mark(words)}{closing}")
        call = action if self.settings.schemas else json.dumps({"name": ACT_TOOL["function"]["name"], "arguments": {"action": action}})
        line = "\n" if said else ""
        return Marked(f"{said}{line}<tool_call>\n{mark(call)}\n</tool_call>")
