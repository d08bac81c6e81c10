"""From a response to an action.

A response is untrusted: any text, broken Unicode, megabytes of tags. Nothing here raises, evaluates or backtracks: every search passes over
the text once. Problems with a response are named by a few fixed phrases, so that they can be counted.

`Parsed.action` is empty if no action could be extracted. If an action was found but breaks a rule (not admissible, no thought), it is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from turnwise.agent.base import Parsed
from turnwise.agent.registry import parsers, register_parser
from turnwise.agent.settings import ACT_TOOL, VALID_RULES
from turnwise.agent.text import well_formed
from turnwise.config.options import Help
from turnwise.util.errors import TurnwiseError, unknown_name

NO_ACTION = "no action tag"
UNCLOSED_ACTION = "unclosed action tag"
ACTION_IN_THOUGHT = "action only inside the thought"
UNCLOSED_THOUGHT = "unclosed thought"
EMPTY = "empty"
SEVERAL = "several actions"  # the first one counts: valid
NO_CALL = "no tool call"
UNCLOSED_CALL = "unclosed tool call"
BAD_JSON = "tool call is not JSON"
UNKNOWN_TOOL = "unknown tool"
BAD_ARGUMENTS = "bad arguments"
NO_THOUGHT = "no thought"
NOT_ADMISSIBLE = "not admissible"
PROBLEMS = (
    *(NO_ACTION, UNCLOSED_ACTION, ACTION_IN_THOUGHT, UNCLOSED_THOUGHT, EMPTY, SEVERAL, NO_CALL, UNCLOSED_CALL),
    *(BAD_JSON, UNKNOWN_TOOL, BAD_ARGUMENTS, NO_THOUGHT, NOT_ADMISSIBLE),
)

_FLAGS = re.IGNORECASE | re.ASCII
_THINK, _THINK_END = re.compile("<think>", _FLAGS), re.compile("</think>", _FLAGS)
_ACTION, _ACTION_END = re.compile("<action>", _FLAGS), re.compile("</action>", _FLAGS)
_CALL, _CALL_END = re.compile("<tool_call>", _FLAGS), re.compile("</tool_call>", _FLAGS)


class Parser:
    """Reads responses in one way (a registered name such as `tags`, or code of the user's own) under one rule of validity."""

    def __init__(self, style: str = "tags", valid: str = "parsed", tools: Sequence[Mapping[str, Any]] = ()):
        if valid not in VALID_RULES:
            raise unknown_name("rule for valid responses", valid, VALID_RULES)
        self.style, self.rule = style, valid
        entry = parsers[style]
        self._read = entry.make({"tools": list(tools)} if "tools" in entry.options else {}, parsers.kind)

    def __call__(self, text: str, actions: Sequence[str] | None = None) -> Parsed:
        """The response as thought and action. `actions` are the admissible ones, if they are known: an action that differs from one of them
        only in case or spacing becomes that one."""
        text = well_formed(text)
        parsed = self._read(text, actions)
        if not isinstance(parsed, Parsed):
            parsed = self._own(parsed, text)
        if not (parsed.action and parsed.valid):
            return parsed if not parsed.valid else replace(parsed, valid=False, problem=parsed.problem or EMPTY)
        fitting = None if actions is None else fit_action(parsed.action, actions)
        if fitting is not None and fitting != parsed.action:
            parsed = replace(parsed, action=fitting)
        if self.rule == "admissible" and actions is not None and fitting is None:
            return replace(parsed, valid=False, problem=NOT_ADMISSIBLE)
        if self.rule == "thought" and not (parsed.thought and split_thought(text)[1]):
            return replace(parsed, valid=False, problem=NO_THOUGHT)
        return parsed

    def _own(self, found: Any, text: str) -> Parsed:
        """What a parser that returns the action as text has read."""
        if not isinstance(found, str):
            raise TurnwiseError(f"parser {self.style!r} gave {type(found).__name__}; a Parsed or the action as text is needed")
        action = well_formed(found.strip())
        return Parsed(action, split_thought(text)[0], bool(action), "" if action else EMPTY)


def _outside(text: str, read: Callable[[str], tuple[str, str]]) -> Parsed:
    """What is read from a response without its thought."""
    thought, closed, answer = split_thought(text)
    action, problem = read(answer)
    if problem in (EMPTY, NO_ACTION, NO_CALL) and len(answer) < len(text):
        problem = _why_in_thought(problem, text, closed)
    return Parsed(action, thought, True, problem) if action else Parsed("", thought, False, problem)


@register_parser("tags")
def tags(response: str, actions: Sequence[str] | None) -> Parsed:
    """The action is between <action> tags."""
    return _outside(response, _tagged)


@register_parser("whole")
def whole(response: str, actions: Sequence[str] | None) -> Parsed:
    """The first line of the response is the action."""

    def read(answer: str) -> tuple[str, str]:
        lines = answer.strip().splitlines()
        return (lines[0].strip(), "") if lines else ("", EMPTY)

    return _outside(response, read)


@register_parser("text")
def all_text(response: str, actions: Sequence[str] | None) -> Parsed:
    """All of the response is the action."""
    return _outside(response, lambda answer: (answer.strip(), "") if answer.strip() else ("", EMPTY))


@register_parser("verbs")
def verbs(response: str, actions: Sequence[str] | None) -> Parsed:
    """The action is between tags named after its verb, as in <search>words</search>."""
    return _outside(response, lambda answer: _verb(answer, actions or ()))


@register_parser("tool")
class ToolCall:
    """The action is a call of a tool in the model's native form."""

    def __init__(self, *, tools: Annotated[list[Any], Help("JSON schemas of the tools; none: one tool `act`")] = []):  # noqa: B006
        self.own_tools = bool(tools)
        self.tool_names = {str(schema.get("function", schema).get("name", "")) for schema in (tools or (ACT_TOOL,))}

    def __call__(self, response: str, actions: Sequence[str] | None) -> Parsed:
        return _outside(response, self._tool_call)

    def _tool_call(self, answer: str) -> tuple[str, str]:
        body, problem = _block(answer, _CALL, _CALL_END, NO_CALL, UNCLOSED_CALL)
        if body is None:
            return "", problem
        try:
            call = json.loads(body)
            arguments = call.get("arguments") if isinstance(call, dict) else None
            if isinstance(arguments, str):  # some models write the arguments as JSON inside a string
                arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return "", BAD_JSON
        if not isinstance(call, dict):
            return "", BAD_JSON
        if not isinstance(name := call.get("name"), str) or name not in self.tool_names:
            return "", UNKNOWN_TOOL
        if not isinstance(arguments, dict):
            return "", BAD_ARGUMENTS
        if self.own_tools:
            return well_formed(json.dumps({"name": name, "arguments": arguments}, sort_keys=True, ensure_ascii=False)), problem
        action = arguments.get("action")
        if not isinstance(action, str):
            return "", BAD_ARGUMENTS
        action = well_formed(action.strip())
        return action, problem if action else EMPTY


def split_thought(text: str) -> tuple[str, bool, str]:
    """The thought, whether it is closed, and what follows it. A chat template may have opened the thought already, so a text that only
    closes one starts inside it. An unclosed thought is all thought: nothing follows."""
    end = _THINK_END.search(text)
    start = _THINK.search(text, 0, end.start() if end else len(text))
    if end is None:
        if start is None:
            return "", False, text
        return text[start.end() :].strip(), False, text[: start.start()]
    return text[start.end() if start else 0 : end.start()].strip(), True, text[end.end() :]


def _tagged(answer: str) -> tuple[str, str]:
    body, problem = _block(answer, _ACTION, _ACTION_END, NO_ACTION, UNCLOSED_ACTION)
    action = "" if body is None else body.strip()
    return action, problem if action or body is None else EMPTY


def _verb(answer: str, actions: Sequence[str]) -> tuple[str, str]:
    """The action in a response that marks it with the verb itself: `<search>words</search>` where the environment lists `search[<…>]`.
    The listed form on a separate line also counts."""
    verbs = tuple(dict.fromkeys(action.partition("[")[0] for action in actions if action.endswith(">]")))
    if not verbs:
        return "", NO_ACTION
    opening = _tag_of(verbs).search(answer)
    if opening is None:
        lines = (line.strip() for line in answer.splitlines())
        plain = next((line for line in lines if line.endswith("]") and line.partition("[")[0] in verbs), "")
        return plain, "" if plain else NO_ACTION
    name = next(verb for verb in verbs if verb.lower() == opening[1].lower())
    closing = _tag_of((f"/{name}",)).search(answer, opening.end())
    if closing is None:
        return "", UNCLOSED_ACTION
    words = " ".join(answer[opening.end() : closing.start()].split())
    again = _tag_of(verbs).search(answer, closing.end())
    return (f"{name}[{words}]", SEVERAL if again else "") if words else ("", EMPTY)


@lru_cache(maxsize=256)
def _tag_of(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"<({'|'.join(map(re.escape, names))})>", _FLAGS)


def _why_in_thought(problem: str, text: str, closed: bool) -> str:
    """A more precise name for a missing action if the response has a thought."""
    if problem == NO_ACTION and _block(text, _ACTION, _ACTION_END, NO_ACTION, UNCLOSED_ACTION)[0] is not None:
        return ACTION_IN_THOUGHT
    return problem if closed else UNCLOSED_THOUGHT


def _block(text: str, opening: re.Pattern[str], closing: re.Pattern[str], none: str, unclosed: str) -> tuple[str | None, str]:
    """The content between the first opening tag and the next closing one; the problem if there is no such block, or a second one."""
    start = opening.search(text)
    if start is None:
        return None, none
    end = closing.search(text, start.end())
    if end is None:
        return None, unclosed
    again = opening.search(text, end.end())
    second = again is not None and closing.search(text, again.end()) is not None
    return text[start.end() : end.start()], SEVERAL if second else ""


def fit_action(action: str, actions: Sequence[str]) -> str | None:
    """The matching admissible action: the same text, or the same except for case and spacing, or one with a `<placeholder>` that
    the action fills (as in `search[<your query>]`; then the action itself). None if there is none."""
    if action in actions:
        return action
    plain = _plain(action)
    for candidate in actions:
        if _plain(candidate) == plain:
            return candidate
        if "<" in candidate and _fills(action, candidate):
            return action
    return None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _fills(action: str, pattern: str) -> bool:
    before, opened, rest = pattern.partition("<")
    _, closed, after = rest.rpartition(">")
    long_enough = len(action) > len(before) + len(after)
    return bool(opened and closed) and long_enough and action.startswith(before) and action.endswith(after)
