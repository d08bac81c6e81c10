"""Conversations with tools as token ids: what a program sends to an endpoint, by the model's chat template.

`opening_ids` renders a whole conversation. `bridge_ids` gives the tokens from the end of a sampled response to the model's next turn, with
new messages in between: only these are rendered, so a response is never tokenised again. A template that does not know tools gets them in
its system message, calls as the text that a model writes, and results as messages of the user.

All text is from outside (`agent/control.py`), so none of it becomes a control token. The exception are the tags of a thought in a message
of the assistant, which templates look for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from turnwise.agent.chat import ANSWER, ASKED, NEXT, Chat
from turnwise.agent.control import Marked
from turnwise.agent.text import well_formed
from turnwise.agent.tool_calls import OPENING, ToolCall, written_call
from turnwise.util.control_strings import deeper_than
from turnwise.util.errors import TurnwiseError

DEEPEST = 64  # levels of arguments that a template gets as values
TOOL = {"type": "function", "function": {"name": NEXT, "description": "-", "parameters": {"type": "object", "properties": {}}}}
THOUGHT_TAGS = "<think></think>"
OWN_DESCRIPTION = (
    "You can call these tools, described by their JSON schemas:\n{tools}\n\n"
    "Write a call as {opening}, then a JSON object with name and arguments, then {closing}."
)
SCHEMA_REQUEST = "Answer with JSON that matches this schema and nothing else:\n{schema}"
JSON_REQUEST = "Answer with a JSON object and nothing else."


@dataclass(frozen=True, slots=True)
class Said:
    """One message. `calls` are those of the assistant; `call_id` is the call that a message of the role `tool` answers."""

    role: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


class Dialogue:
    """Renders conversations with a chat template. `tools` are JSON schemas in OpenAI's form, a different list for every conversation."""

    def __init__(self, chat: Chat):
        self.chat = chat

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template describes tools to the model."""
        return not self.chat.is_plain and self._shows([{"role": "user", "content": ASKED}], [TOOL])

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the template writes the calls of an earlier message, and takes their results."""
        call = {"type": "function", "id": "call00000", "function": {"name": NEXT, "arguments": {}}}
        result = {"role": "tool", "tool_call_id": "call00000", "name": NEXT, "content": ANSWER}
        asked = {"role": "user", "content": ASKED}
        talk: list[dict[str, Any]] = [asked, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
        return self.shows_tools and self._shows(talk, None, NEXT) and self._shows(talk, None, ANSWER)

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template has a system role."""
        return self._shows([{"role": "system", "content": NEXT}, {"role": "user", "content": ASKED}], None)

    @cached_property
    def writes_tags(self) -> bool:
        """Whether calls are written between tags: in this template's own form, or in ours."""
        if not self.shows_tools:
            return True
        try:
            return OPENING in self.chat.render([{"role": "user", "content": ASKED}], [TOOL])
        except TurnwiseError:
            return False

    def _shows(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, what: str = NEXT) -> bool:
        try:
            return what in self.chat.render(messages, tools or [])
        except TurnwiseError:
            return False

    def opening_ids(self, messages: Sequence[Said], tools: Sequence[Mapping[str, Any]] = (), request: str = "") -> list[int]:
        """The prompt of a whole conversation. `request` is also appended to the system message, after everything else."""
        own = [] if self.shows_tools or not tools else [_described(tools)]
        talk = self._with_system(messages, [*own, *([request] if request else [])])
        shown = [self.chat.control.mark_deep(tool) for tool in tools] if self.shows_tools else []
        return self.encode(self.chat.render([self._written(one) for one in talk], shown))

    def bridge_ids(self, response_ids: Sequence[int], messages: Sequence[Said]) -> list[int]:
        """The tokens from the end of a response to the model's next turn, with these messages in between."""
        ids = self.encode(self.chat.after_answer([self._written(one) for one in messages], []))
        end = self.chat.end_id
        if len(response_ids) and end is not None and response_ids[-1] == end:
            return ids[ids.index(end) + 1 :]
        return ids

    def _with_system(self, messages: Sequence[Said], more: list[str]) -> list[Said]:
        """The conversation with further texts in its system message, or in its first message if the template has no system role."""
        first = [one for one in messages if one.role == "system"] if not self.takes_system else list(messages[:1])
        system = [one.content for one in first if one.role == "system"]
        if self.takes_system:
            if not more:
                return list(messages)
            text = "\n\n".join([*system, *more])
            return [Said("system", text), *(messages[1:] if system else messages)]
        rest = [one for one in messages if one.role != "system"]
        text = "\n\n".join([*system, *more])
        if not text:
            return rest
        place = next((number for number, one in enumerate(rest) if one.role == "user"), None)
        if place is None:
            return [Said("user", text), *rest]
        joined = replace(rest[place], content=f"{text}\n\n{rest[place].content}")
        return [*rest[:place], joined, *rest[place + 1 :]]

    def _written(self, said: Said) -> dict[str, Any]:
        """A message as templates take it, marked."""
        mark = self.chat.control.mark
        content: str = mark(well_formed(said.content))
        if said.role == "assistant":
            content = self.chat.control.own(well_formed(said.content), THOUGHT_TAGS)
        if said.role == "tool" and not self.shows_calls:
            return {"role": "user", "content": Marked(f"<tool_response>\n{content}\n</tool_response>")}
        message: dict[str, Any] = {"role": said.role, "content": content}
        if said.calls and not self.shows_calls:
            written = "\n".join(written_call(ToolCall(mark(call.name), mark(call.arguments))) for call in said.calls)
            message["content"] = Marked(f"{content}\n{written}" if content else written)
        elif said.calls:
            message["tool_calls"] = [self._call(call) for call in said.calls]
        if said.call_id:
            message["tool_call_id"] = mark(said.call_id)
        if said.name:
            message["name"] = mark(said.name)
        return message

    def _call(self, call: ToolCall) -> dict[str, Any]:
        """A call as templates take it: with its arguments as values, where they are an object."""
        mark = self.chat.control.mark_deep
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            arguments = call.arguments
        arguments = mark(arguments if isinstance(arguments, dict) and not deeper_than(DEEPEST, arguments) else call.arguments)
        return {"id": mark(call.id), "type": "function", "function": {"name": mark(call.name), "arguments": arguments}}

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text."""
        return self.chat.control.encode(text)


def _described(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return OWN_DESCRIPTION.format(tools=lines, opening=OPENING, closing=OPENING.replace("<", "</"))
