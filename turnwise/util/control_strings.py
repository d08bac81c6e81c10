"""Strings that tokenizers read as control tokens, made harmless in text that others wrote.

`<|im_start|>` opens a message and `<tool_call>` a call, whoever wrote them. A mark inside such a string prevents that. It is one of two
characters that Unicode reserves for internal use, and becomes an invisible space where a text leaves this program. See `agent/control.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CUT, SOFT = "\ufdd2", "\ufdd3"  # never part of a text: Unicode reserves them for internal use
INVISIBLE = "\u200b"  # a zero-width space: invisible to a reader, but no tokenizer ignores it
REPLACED = "\ufffd"
_WORDS = "s|bos|eos|pad|unk|mask|cls|sep|sop|eop|start_of_turn|end_of_turn|start_of_image|end_of_image|unused_?\\d+|extra_id_\\d+"
_UPPER = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|gMASK|MASK|CLS|SEP|PAD|UNK"
# Role and document markers in the tokenizers of other models: no prompt contains these on purpose.
BORDER = re.compile(
    rf"<\|[^<>|\s]{{1,64}}\|>|<｜[^<>\s]{{1,64}}｜>|\[\|[^\[\]|\s]{{1,64}}\|\]|</?(?:{_WORDS})>|\[/?(?:{_UPPER})\]|<</?SYS>>"
)
# The same, and the tags of thoughts, calls and their results: our own prompts also name these.
FOREIGN = re.compile(rf"{BORDER.pattern}|</?(?:think|tools?|tool_calls?|tool_responses?|functions?|function_calls?|image|video|audio)>")


def neutral(text: str) -> str:
    """A marked text for a reader that does not know the marks: an invisible space replaces them."""
    return str(text).replace(CUT, INVISIBLE).replace(SOFT, INVISIBLE)


def unbordered(text: str) -> str:
    """An unmarked text, for a server: it cannot open a message of another role."""
    return neutral(cut(text, BORDER, SOFT))


def neutral_deep(value: Any) -> Any:
    """A JSON value from outside, for a server."""
    return each_text(value, lambda text: neutral(cut(text, FOREIGN, SOFT)))


def for_server(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation, for a server. Those of the assistant are its model's: they keep the tags of thoughts and calls."""
    return [each_text(dict(one), unbordered) if one.get("role") == "assistant" else neutral_deep(dict(one)) for one in messages]


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text in it changed, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {each_text(key, change): each_text(inner, change) for key, inner in value.items()}
    return [each_text(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value


def deeper_than(levels: int, value: Any) -> bool:
    """Whether a JSON value is nested more deeply than this."""
    inner = [value]
    for _ in range(levels + 1):
        inner = [part for one in inner if isinstance(one, (dict, list)) for part in (one.values() if isinstance(one, dict) else one)]
        if not inner:
            return False
    return True


def cut(text: str, pattern: re.Pattern[str], mark: str, allowed: frozenset[str] = frozenset()) -> str:
    """The text with a mark inside each match, after its first character, so that no string that starts there or later stays intact."""
    found = pattern.search(text)
    if found is None:
        return text
    parts, start = [], 0
    while found is not None:
        keeps = found[0] in allowed
        end = found.end() if keeps else found.start() + 1
        parts += [text[start:end]] if keeps else [text[start:end], mark]
        start, found = end, pattern.search(text, end)
    return "".join([*parts, text[start:]])
