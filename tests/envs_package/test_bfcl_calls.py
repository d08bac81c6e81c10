"""The calls in a model's text: JSON or as in Python, never evaluated, never an error."""

from __future__ import annotations

import random
from typing import Any

import pytest

from turnwise.envs.tools.calls import LONGEST, Final, Mistake
from turnwise_envs.bfcl.calls import Calls, read_action, written


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = read_action(text)
    assert isinstance(found, Calls), found
    return [(call.name, call.arguments) for call in found.calls]


@pytest.mark.parametrize(
    "text",
    [
        "mv(source='a b.txt', destination=\"c's\")",
        '{"name": "mv", "arguments": {"source": "a b.txt", "destination": "c\'s"}}',
        '<think>mv(x)</think><tool_call>{"name": "mv", "arguments": {"source": "a b.txt", "destination": "c\'s"}}</tool_call>',
        "```python\nmv(source='a b.txt', destination='c\\'s')\n```",
        "[mv(source='a b.txt', destination='c\\'s')]",
        '[{"name": "mv", "arguments": {"source": "a b.txt", "destination": "c\'s"}}]',
        'mv ( source = "a" " b.txt", destination = "c\\x27s" , )'.replace("mv (", "mv("),
    ],
)
def test_a_call_is_read_in_every_form(text: str) -> None:
    assert calls_of(text) == [("mv", {"source": "a b.txt", "destination": "c's"})]


def test_values_are_constants_of_python_or_of_json() -> None:
    [(_, arguments)] = calls_of("f(a=-1, b=2.5e3, c=True, d=null, e=['x', [1]], g={'k': (1, 2)}, h='tab\\t\\u00e9', i=1_000)")
    wanted = {"a": -1, "b": 2500.0, "c": True, "d": None, "e": ["x", [1]], "g": {"k": [1, 2]}, "h": "tab\té", "i": 1000}
    assert arguments == wanted
    assert [type(value) for value in arguments.values()] == [type(value) for value in wanted.values()]
    assert calls_of("f('x', 2, b=3)") == [("f", {"0": "x", "1": 2, "b": 3})]


def test_several_calls_keep_their_order() -> None:
    for text in ("[a(x=1), b()]", "a(x=1)\nb()", "a(x=1); b()"):
        assert calls_of(text) == [("a", {"x": 1}), ("b", {})]
    blocks = '<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call>\n<tool_call>{"name": "b"}</tool_call>'
    assert calls_of(blocks) == [("a", {"x": 1}), ("b", {})]


@pytest.mark.parametrize(
    "text", ["done", "Done.", "done()", "I moved both files (to temp).", '{"name": "done"}', "<answer>all set</answer>"]
)
def test_a_text_that_is_no_call_ends_the_request(text: str) -> None:
    assert isinstance(read_action(text), Final)


@pytest.mark.parametrize(
    "text",
    [
        *("", "cd(folder=", "cd(folder='x", "cd(folder=x)", "cd(folder='x') and more", "cd(folder='a', folder='b')", "{broken", "[1, 2]"),
        *("cd(folder=__import__('os').system('x'))", "f(a=[x for x in y])", "f(a=lambda: 1)", "f(*a)", "f(a=b.c)", "f(a=f'{x}')"),
        *("f(a=1e999)", "f(a=10**9)", "f(a=" + "9" * 5000 + ")", '{"name": "f", "arguments": {"a": NaN}}', "f(a='\\xzz')"),
        *(
            "f(a=" + "[" * 100_000,
            "f(a=" + "[" * 20 + "]" * 20 + ")",
            "[" * 90_000,
            '{"a":' * 15_000,
            "f(" * 30_000,
            "f(a=" + "-" * 90_000 + "1)",
        ),
        *("x" * 10_000_000, "f(a='" + "y" * LONGEST + "')", "f();" * 60),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_cannot_be_read_is_answered_with_one_line(text: str) -> None:
    found = read_action(text)
    assert isinstance(found, Mistake)
    assert "\n" not in found.text and len(found.text) < 400


def test_hostile_texts_take_no_long_time_and_never_raise() -> None:
    chance = random.Random(5)
    pieces = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "\\",
        ",",
        "=",
        ":",
        "f",
        "x=",
        "1",
        "\n",
        "<tool_call>",
        "```",
        "\ud800",
        " ",
        "done",
    ]
    texts = ["f(" * chance.randint(0, 1) + "".join(chance.choices(pieces, k=chance.randint(0, 60))) for _ in range(2000)]
    texts += [f"f(a={piece * (90_000 // len(piece))}" for piece in pieces] + [piece * (90_000 // len(piece)) for piece in pieces]
    for text in texts:
        found = read_action(text)
        assert not isinstance(found, Mistake) or len(found.text) < 400


def test_a_written_call_is_read_back_exactly() -> None:
    chance = random.Random(3)
    for _ in range(300):
        text = "".join(chance.choices("ab'\"\\\n\t é{}[](),=\x00\x7f\U0001f600", k=chance.randint(0, 12)))
        arguments = {"s": text, "l": [text, 1.5, -3, True, None], "d": {text: [text]}, "f": chance.uniform(-1e9, 1e9)}
        assert calls_of(written("f", arguments)) == [("f", arguments)]
