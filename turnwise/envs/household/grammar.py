"""A reader of the grammar of a household game: how commands and answers are worded.

The file names, for every action, a command template and a feedback, and gives production rules. A text contains literals, `{r.name}`
(something of a thing), `#symbol#` (the first production whose condition holds), `{… | query}` (once for each answer of the query) and
`[{… | query}]` (the same as an English list). Two habits of the reference reader are kept because players see them: white space at the
very beginning of a text is dropped, and reading stops silently at the first character that fits nowhere.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.syntax import undisturbed

TASK_MARK = "\ue000"  # stands for the task's sentence, so that games that differ only in it share one compiled grammar
Placeholder = tuple[str, str]  # name, type


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """Something of a thing, as a checked expression: see `read_expression`."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class Each:
    """`body` once for each answer to the query (just once if there is none); `listed`: joined as an English list."""

    body: Symbol | Value
    query: Query | None
    listed: bool


@dataclass(frozen=True, slots=True)
class Query:
    """Predicates over placeholders that must hold together."""

    predicates: tuple[tuple[str, tuple[Placeholder, ...]], ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """`of`: an attribute of a placeholder; `text`: a constant; `+`, `or`, `and`: parts combined."""

    operator: str
    name: str = ""
    attribute: str = ""
    parts: tuple[Expression, ...] = ()


Text = tuple[Literal | Symbol | Each, ...]


@dataclass(frozen=True, slots=True)
class Production:
    condition: Query | None
    text: Text


@dataclass(frozen=True)
class Grammar:
    """`actions` maps an action's name to its command template and its feedback; `productions` a symbol to its alternatives."""

    actions: dict[str, tuple[Text, Text]]
    productions: dict[str, tuple[Production, ...]]


_TASK_RULE = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*")([^"\\]*)"')
_SPECIAL = re.compile(r'[;|"<>\[\]#{}]')


def split_task(text: str) -> tuple[str, str]:
    """The grammar with its task's sentence taken out, and that sentence. If it cannot be taken out safely it stays in."""
    found = _TASK_RULE.findall(text)
    if len(found) != 1 or _SPECIAL.search(found[0][1]) or TASK_MARK in text:
        return text, ""
    return _TASK_RULE.sub(lambda match: f'{match[1]}{TASK_MARK}"', text), found[0][1].lstrip()


_DOCUMENT = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<grammar>grammar\s*::\s*\"{3}(?P<code>(?:.|\n)*?)\"{3}\s*;)
      | (?P<action>action\s+(?P<name>[\w/-]+)\s*\{)""",
    re.VERBOSE,
)
_FIELD = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<block>(?:grammar|pddl))\s*::\s*\"{3}(?P<code>(?:.|\n)*?)\"{3}\s*;
      | (?P<line>template|feedback)\s*::\s*\"(?P<text>[^"]*)\"\s*;
      | (?P<end>\})""",
    re.VERBOSE,
)


def parse_grammar(text: str) -> Grammar:
    actions: dict[str, tuple[Text, Text]] = {}
    rules: dict[str, Any] = {}
    position = 0
    while position < len(text):
        match = _DOCUMENT.match(text, position)
        if match is None:
            raise TurnwiseError(f"grammar, line {_line(text, position)}: expected an action or a grammar block")
        position = match.end()
        if match["grammar"]:
            rules.update(_json_block(match["code"], text, match.start()))
        elif match["action"]:
            fields, position = _action_fields(text, position, rules)
            for field in ("template", "feedback"):
                if field not in fields:
                    raise TurnwiseError(f"grammar, line {_line(text, match.start())}: action {match['name']} has no {field}")
            actions[match["name"].lower()] = (read_text(fields["template"]), read_text(fields["feedback"]))
    return Grammar(actions, {name: tuple(_productions(name, given)) for name, given in rules.items()})


def _action_fields(text: str, position: int, rules: dict[str, Any]) -> tuple[dict[str, str], int]:
    fields: dict[str, str] = {}
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise TurnwiseError(f"grammar, line {_line(text, position)}: expected template, feedback, grammar or a closing brace")
        position = match.end()
        if match["end"]:
            return fields, position
        if match["line"]:
            fields[match["line"]] = match["text"]
        elif match["block"] == "grammar":
            rules.update(_json_block(match["code"], text, match.start()))


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _json_block(code: str, text: str, position: int) -> dict[str, Any]:
    lines = (line for line in textwrap.dedent(code).split("\n") if not line.lstrip().startswith("#"))
    try:
        rules = json.loads("\n".join(lines))
    except ValueError as error:
        raise TurnwiseError(f"grammar block at line {_line(text, position)}: not valid JSON: {error}") from None
    if not isinstance(rules, dict):
        raise TurnwiseError(f"grammar block at line {_line(text, position)}: expected a JSON object of productions")
    return rules


def _productions(name: str, given: Any) -> Iterator[Production]:
    if not isinstance(given, list) or not given:
        raise TurnwiseError(f"grammar, symbol {name!r}: expected a list of productions")
    for rule in given:
        if not isinstance(rule, dict) or not isinstance(rule.get("rhs"), str) or not isinstance(rule.get("condition", ""), str):
            raise TurnwiseError(f'grammar, symbol {name!r}: a production is {{"rhs": text}} with an optional "condition"')
        condition = rule.get("condition", "")
        yield Production(read_query(condition) if condition else None, read_text(rule["rhs"]))


# One alternative per kind of symbol; a tab before any of them is ignored.
_LEADING = re.compile(r"(?:\t+|//[^\n]*\n?|\s+)*")
_BODY = r"\{\t*(?:\#(?P<symbol>[\w()/!<>\-\s,.]+)\#|(?P<value>[^|\[\]{}\n<>]+))(?:\s*\|\s*(?P<query>[^;|{}\n\[\]#]+))?\t*\}"
_LISTED = re.compile(rf"\t*\[\t*{_BODY}\t*\]")
_EACH = re.compile(rf"\t*{_BODY}")
_SYMBOL = re.compile(r"\t*#\t*([\w()/!<>\-\s,.]+)\t*#")
_QUOTED = re.compile(r'\t*"\t*([^;|"<>\[\]#{}]*)\t*"')
_LITERAL = re.compile(r'\t*([^;|"<>\[\]#{}]+)')


def read_text(text: str) -> Text:
    """The parts of a text, up to the first character that fits nowhere."""
    leading = _LEADING.match(text)
    position = leading.end() if leading else 0
    pieces: list[Literal | Symbol | Each] = []
    while position < len(text):
        for pattern in (_LISTED, _EACH, _SYMBOL, _QUOTED, _LITERAL):
            if match := pattern.match(text, position):
                break
        else:
            break
        if pattern in (_LISTED, _EACH):
            pieces.append(_each(match, listed=pattern is _LISTED))
        else:
            pieces.append(Symbol(match[1]) if pattern is _SYMBOL else Literal(match[1]))
        position = match.end()
    return tuple(pieces)


def _each(match: re.Match[str], *, listed: bool) -> Each:
    body = Symbol(match["symbol"]) if match["symbol"] is not None else Value(read_expression(match["value"]))
    return Each(body, read_query(match["query"]) if match["query"] else None, listed)


_PREDICATE = re.compile(r"\s*([\w@/-]+)\s*\(([^()]*)\)\s*")


def read_query(text: str) -> Query:
    """`inreceptacle(o:object, r:receptacle) & opened(r:receptacle)`."""
    predicates = []
    for part in text.split("&"):
        match = _PREDICATE.fullmatch(part)
        if match is None:
            raise TurnwiseError(f"grammar: cannot read the query {text!r} at {part!r}")
        predicates.append((match[1], tuple(_placeholder(word, text) for word in match[2].split(",") if word.strip())))
    return Query(tuple(predicates))


def _placeholder(word: str, text: str) -> Placeholder:
    name, colon, kind = (part.strip() for part in word.partition(":"))
    if not name.isidentifier() or (colon and not kind):
        raise TurnwiseError(f"grammar: cannot read {word.strip()!r} in the query {text!r}")
    return name, kind or name


ATTRIBUTES = ("name", "id", "type", "definite", "indefinite")


def read_expression(text: str) -> Expression:
    """A Python expression over things, restricted to a small safe part of the language: nothing from a file is ever executed."""
    try:
        tree = undisturbed(lambda: ast.parse(text.strip(), mode="eval")).body
    except SyntaxError:
        raise TurnwiseError(f"grammar: cannot read the expression {text!r}") from None
    return _expression(tree, text)


def _expression(node: ast.expr, text: str) -> Expression:
    if isinstance(node, ast.Name):
        return Expression("of", node.id, "name")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in ATTRIBUTES:
        return Expression("of", node.value.id, node.attr)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Expression("text", node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return Expression("+", parts=(_expression(node.left, text), _expression(node.right, text)))
    if isinstance(node, ast.BoolOp):
        operator = "or" if isinstance(node.op, ast.Or) else "and"
        return Expression(operator, parts=tuple(_expression(part, text) for part in node.values))
    raise TurnwiseError(f"grammar: the expression {text!r} uses more than names, texts, + and or")
