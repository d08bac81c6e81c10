"""What an action asks for: calls of functions, the end of a request, or neither.

A call is JSON, as in the environment `tools`, or is written as in Python: `cd(folder='reports')`. The second form has a parser of its own
that knows names, constants, lists and dictionaries and nothing else. Nothing is evaluated, every text is read in one pass, and none raises
an error: a `Mistake` says what to write instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from turnwise.envs.tools.calls import LONGEST, TAGGED, THOUGHT_END, Call, Final, Mistake, read_call

DONE = "done"
MOST_CALLS = 50  # in one action
DEEPEST = 8  # lists and dictionaries inside each other
LARGEST = 10**15  # of a number
SHAPE = re.compile(r"\[?\s*[A-Za-z_][\w.]*\(")
NAME = re.compile(r"[A-Za-z_][\w.]*")
NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
PLAIN = re.compile(r"[^'\"\\\n]+")
SPACE = re.compile(r"[\s;]*")
FENCE = re.compile(r"```\w*")
HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
CODES = {"x": 2, "u": 4, "U": 8}
HOW = "Write a call as cd(folder='reports'), with every argument by its name."


class Calls(NamedTuple):
    """Calls in their order. An argument without a name has its position as its name: 0, 1, …"""

    calls: tuple[Call, ...]


def read_action(action: str) -> Calls | Final | Mistake:
    """The meaning of a text. A text that does not look like a call is an answer to the user, and ends the request."""
    if len(action) > LONGEST:
        return Mistake(f"The action has {len(action):,} characters; at most {LONGEST:,} are read.")
    text = action.encode("utf-8", "replace").decode()
    if ended := THOUGHT_END.search(text):
        text = text[ended.end() :]
    text = text.strip()
    if fence := FENCE.match(text):
        text = text[fence.end() :].removesuffix("```").strip()
    if text.rstrip("().").lower() == DONE or not text:
        return Final(DONE) if text else Mistake(f"This is empty. {HOW} End the request with: {DONE}")
    if text[0] in "[{" or TAGGED.search(text):
        found = _json(text)
        if not isinstance(found, Mistake) or not SHAPE.match(text):
            return found
    return _python(text) if SHAPE.match(text) else Final(text)


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the Python form."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


# -- JSON -----------------------------------------------------------------------------------------------------------------------------


def _json(text: str) -> Calls | Final | Mistake:
    bodies = _blocks(text)
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError) as error:
            return Mistake(f"The calls are not JSON ({error}). {HOW}")
        bodies = [json.dumps(one) for one in listed]
    calls: list[Call] = []
    for body in bodies[: MOST_CALLS + 1]:
        found = read_call(body)
        if isinstance(found, Mistake) or (isinstance(found, Final) and not calls):
            return found
        if isinstance(found, Final) or found.name == DONE:
            break
        calls.append(found)
    return _checked(calls)


def _blocks(text: str) -> list[str]:
    """The blocks of `<tool_call>` tags, or the whole text."""
    parts = re.split("(?=<tool_call>)", text)
    return [part for part in parts if part.startswith("<tool_call>")] or [text]


def _checked(calls: list[Call]) -> Calls | Final | Mistake:
    if len(calls) > MOST_CALLS:
        return Mistake(f"An action has at most {MOST_CALLS} calls.")
    for call in calls:
        if wrong := unusable(list(call.arguments.values())):
            return Mistake(f"{call.name[:100]}: {wrong}")
    return Calls(tuple(calls)) if calls else Final(DONE)


def unusable(value: Any, depth: int = 0) -> str:
    """What is wrong with a value that a model gave, whichever function it is for; empty if nothing is."""
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= LARGEST):
        return f"numbers are between -10^{len(str(LARGEST)) - 1} and 10^{len(str(LARGEST)) - 1}."
    if isinstance(value, list | dict):
        if depth > DEEPEST:
            return f"lists and dictionaries may be at most {DEEPEST} levels deep."
        inner = value.values() if isinstance(value, dict) else value
        return next((wrong for one in inner if (wrong := unusable(one, depth + 1))), "")
    return ""


# -- Python ---------------------------------------------------------------------------------------------------------------------------


class _Unread(Exception):
    """The text is not a call, for this reason."""


def _python(text: str) -> Calls | Final | Mistake:
    reader = _Reader(text)
    try:
        calls = reader.calls()
    except _Unread as why:
        return Mistake(f"The call cannot be read: {why}, at character {reader.at + 1}. {HOW}")
    if calls and calls[-1].name == DONE and not calls[-1].arguments:
        calls.pop()
    return _checked(calls)


class _Reader:
    """A text and the position that was reached in it."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def calls(self) -> list[Call]:
        """One call after the other, or a list of calls."""
        listed = self._skip("[")
        found: list[Call] = []
        while self._next() and self._next() != "]" and len(found) <= MOST_CALLS:
            found.append(self._call())
            self._skip(",")
        if listed:
            self._want("]")
        if self._next() and len(found) <= MOST_CALLS:
            raise _Unread("there is more text behind it")
        return found

    def _call(self) -> Call:
        name = self._match(NAME, "the name of a function")
        self._want("(")
        arguments: dict[str, Any] = {}
        while not self._skip(")"):
            key, value = self._argument(len(arguments))
            if key in arguments:
                raise _Unread(f"the argument {key} is given twice")
            arguments[key] = value
            if self._next() != ")":
                self._want(",")
        return Call(name, arguments)

    def _argument(self, place: int) -> tuple[str, Any]:
        """A value with the name that it is given to, or with its position."""
        start = self.at
        if (found := NAME.match(self.text, self._where())) and found[0] not in CONSTANTS:
            self.at = found.end()
            if self._skip("="):
                return found[0], self._value(0)
            self.at = start
        return str(place), self._value(0)

    def _value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise _Unread(f"lists and dictionaries may be at most {DEEPEST} levels deep")
        sign = self._next()
        if sign and sign in "'\"":
            return self._text()
        if sign and sign in "[(":
            return self._list("]" if sign == "[" else ")", depth)
        if sign == "{":
            return self._dictionary(depth)
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            return _number(found[0])
        word = self._match(NAME, "a value")
        if word not in CONSTANTS:
            raise _Unread(f"{word[:40]} is not a value: texts need quotes")
        return CONSTANTS[word]

    def _list(self, end: str, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while not self._skip(end):
            found.append(self._value(depth + 1))
            if self._next() != end:
                self._want(",")
        return found

    def _dictionary(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while not self._skip("}"):
            if self._next() not in ("'", '"'):
                raise _Unread("the keys of a dictionary are texts in quotes")
            key = self._text()
            self._want(":")
            found[key] = self._value(depth + 1)
            if self._next() != "}":
                self._want(",")
        return found

    def _text(self) -> str:
        """A text in quotes; texts that follow each other are one, as in Python."""
        parts: list[str] = []
        while (quote := self._next()) and quote in "'\"":
            self.at += 1
            self._quoted(quote, parts)
        return "".join(parts)

    def _quoted(self, quote: str, parts: list[str]) -> None:
        while (sign := self.text[self.at : self.at + 1]) != quote:
            if plain := PLAIN.match(self.text, self.at):
                parts.append(plain[0])
                self.at = plain.end()
            elif sign == "\\":
                parts.append(self._escaped())
            elif not sign:
                raise _Unread("a quote is not closed")
            else:
                parts.append(sign)
                self.at += 1
        self.at += 1

    def _escaped(self) -> str:
        sign = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if digits := CODES.get(sign):
            code = self.text[self.at : self.at + digits]
            if len(code) < digits or not HEXADECIMAL.fullmatch(code) or int(code, 16) > 0x10FFFF:
                raise _Unread(f"\\{sign} needs {digits} hexadecimal digits")
            self.at += digits
            return chr(int(code, 16)).encode("utf-8", "replace").decode()
        return ESCAPES.get(sign, "\\" + sign)

    # -- positions --

    def _where(self) -> int:
        found = SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return self.at

    def _next(self) -> str:
        """The next character that is not a space; empty at the end."""
        at = self._where()
        return self.text[at : at + 1]

    def _skip(self, sign: str) -> bool:
        if self._next() != sign:
            return False
        self.at += 1
        return True

    def _want(self, sign: str) -> None:
        if not self._skip(sign):
            raise _Unread(f"{sign} is missing")

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        if not (found := pattern.match(self.text, self._where())):
            raise _Unread(f"{what} is missing")
        self.at = found.end()
        return found[0]


def _number(text: str) -> int | float:
    plain = text.replace("_", "")
    if len(plain) > 40:
        raise _Unread("a number is too long")
    try:
        return int(plain)
    except ValueError:
        return float(plain)
