"""The action in a response: a call of a tool, the final answer, or neither.

A call is a JSON object `{"name": …, "arguments": {…}}`, alone or between `<tool_call>` tags. An answer is a call of `answer`, the form
`answer[words]`, or `<answer>words</answer>`. Any text is read in one pass, and none raises an error: a
`Mistake` says what to write instead.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

ANSWER = "answer"
FORM = '{"name": "the tool", "arguments": {"the argument": "its value"}}'
ANSWER_FORM = '{"name": "answer", "arguments": {"answer": "your answer"}}'
HOW = f"Call a tool as {FORM}, or give your answer as {ANSWER_FORM}."
LONGEST = 100_000  # characters of an action that are read
_FLAGS = re.IGNORECASE | re.ASCII
TAGGED = re.compile("<(tool_call|answer)>", _FLAGS)
THOUGHT_END = re.compile("</think>", _FLAGS)


class Call(NamedTuple):
    """A tool with its arguments."""

    name: str
    arguments: dict[str, Any]


class Final(NamedTuple):
    """The final answer."""

    text: str


class Mistake(NamedTuple):
    """An action that is neither, and what is wrong with it."""

    text: str


def read_call(action: str, plain_answers: bool = False) -> Call | Final | Mistake:
    """The action of a text. `plain_answers`: a text that does not look like a call is the answer."""
    text = action.encode("utf-8", "replace").decode()[:LONGEST]
    if ended := THOUGHT_END.search(text):
        text = text[ended.end() :]
    text = text.strip()
    if opening := TAGGED.search(text):
        name = opening[1].lower()
        closing = re.compile(f"</{name}>", _FLAGS).search(text, opening.end())
        if closing is None:
            return Mistake(f"The tag <{name}> is not closed. {HOW}")
        body = text[opening.end() : closing.start()].strip()
        return _final(body) if name == ANSWER else _call(body)
    if text[: len(ANSWER) + 1].lower() == f"{ANSWER}[" and text.endswith("]"):
        return _final(text[len(ANSWER) + 1 : -1].strip())
    if text.startswith("{"):
        return _call(text)
    if plain_answers and text:
        return _final(text)
    return Mistake(f"This is not a tool call. {HOW}" if text else f"This is empty. {HOW}")


def _final(text: str) -> Final | Mistake:
    return Final(text) if text else Mistake(f"The answer is empty. {HOW}")


def _call(body: str) -> Call | Final | Mistake:
    try:
        call = json.loads(body)
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):  # some models write the arguments as JSON inside a string
            arguments = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return Mistake(f"The tool call is not JSON ({error}). {HOW}")
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        return Mistake(f'A tool call needs a "name". {HOW}')
    if not isinstance(arguments, dict):
        return Mistake(f'The "arguments" of a tool call are an object. {HOW}')
    if name == ANSWER:
        said = arguments.get("answer")
        return _final(said.strip() if isinstance(said, str) else "" if said is None else json.dumps(said, ensure_ascii=False))
    return Call(name, arguments)
