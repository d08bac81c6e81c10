"""Responses become actions: by tags, by the first line, by the model's own tool call; whatever the model says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.agent import Parsed, Parser
from turnwise.agent.parse import PROBLEMS, fit_action
from turnwise.agent.registry import parsers as known
from turnwise.agent.settings import VALID_RULES
from turnwise.util.errors import TurnwiseError

STYLES = known.names()

ACTIONS = ("go to desk 1", "open drawer 3", "look")
TAGS = [
    "<think>",
    "</think>",
    "<action>",
    "</action>",
    "<tool_call>",
    "</tool_call>",
    "<ACTION>",
    "look",
    "\n",
    " ",
    '{"name": "act"',
    "\ud800",
    "İ",
]
anything = st.one_of(
    st.text(st.characters(codec=None), max_size=200),
    st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=5)), max_size=20).map("".join),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a desk</think><action>go to desk 1</action>", Parsed("go to desk 1", "a desk")),
        ("<action>\n look \n</action> and more", Parsed("look")),
        ("so I am inside</think>\n<action>look</action>", Parsed("look", "so I am inside")),
        ("<THINK>x</THINK><Action>Look</ACTION>", Parsed("Look", "x")),
        ("<action>a</action><action>b</action>", Parsed("a", problem="several actions")),
        ("<think>maybe <action>a</action></think><action>b</action>", Parsed("b", "maybe <action>a</action>")),
        ("<think>maybe <action>a</action></think>", Parsed("", "maybe <action>a</action>", False, "action only inside the thought")),
        ("<think>on and on", Parsed("", "on and on", False, "unclosed thought")),
        ("go to desk 1", Parsed("", valid=False, problem="no action tag")),
        ("<action>go to desk", Parsed("", valid=False, problem="unclosed action tag")),
        ("<action> </action>", Parsed("", valid=False, problem="empty")),
        ("", Parsed("", valid=False, problem="no action tag")),
        ("<action>a\ud800b</action>", Parsed("a\ufffdb")),
    ],
)
def test_tags(text: str, expected: Parsed) -> None:
    assert Parser("tags")(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go to desk 1", Parsed("go to desk 1")),
        ("\n\n  look  \nopen drawer 3", Parsed("look")),
        ("<think>hm</think>\nlook", Parsed("look", "hm")),
        ("<think>hm", Parsed("", "hm", False, "unclosed thought")),
        (" \n ", Parsed("", valid=False, problem="empty")),
    ],
)
def test_the_whole_response_is_its_first_line(text: str, expected: Parsed) -> None:
    assert Parser("whole")(text) == expected


def call(name: object = "act", arguments: object = None) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call("act", {"action": "look"}), Parsed("look")),
        ("<think>hm</think>" + call("act", '{"action": " look "}'), Parsed("look", "hm")),
        (call("act", {"action": "look"}) + call("act", {"action": "b"}), Parsed("look", problem="several actions")),
        (call("fly", {"action": "look"}), Parsed("", valid=False, problem="unknown tool")),
        (call(["act"], {"action": "look"}), Parsed("", valid=False, problem="unknown tool")),
        (call("act", {"act": "look"}), Parsed("", valid=False, problem="bad arguments")),
        (call("act", [1]), Parsed("", valid=False, problem="bad arguments")),
        (call("act", {"action": ""}), Parsed("", valid=False, problem="empty")),
        ("<tool_call>act(look)</tool_call>", Parsed("", valid=False, problem="tool call is not JSON")),
        ("<tool_call>[1]</tool_call>", Parsed("", valid=False, problem="tool call is not JSON")),
        ("<tool_call>{", Parsed("", valid=False, problem="unclosed tool call")),
        ("look", Parsed("", valid=False, problem="no tool call")),
    ],
)
def test_tool_calls(text: str, expected: Parsed) -> None:
    assert Parser("tool")(text) == expected


def test_a_call_of_the_environments_own_tools_is_passed_on_as_json() -> None:
    parser = Parser("tool", tools=[{"type": "function", "function": {"name": "buy"}}, {"name": "search"}])
    assert parser(call("buy", {"n": 2, "item": "é"})).action == '{"arguments": {"item": "é", "n": 2}, "name": "buy"}'
    assert parser(call("search", {})).valid
    assert parser(call("act", {"action": "look"})).problem == "unknown tool"


def test_admissible_is_a_rule_of_its_own() -> None:
    said = "<action>fly</action>"
    assert Parser("tags")(said, ACTIONS) == Parsed("fly")
    assert Parser("tags", "admissible")(said, ACTIONS) == Parsed("fly", valid=False, problem="not admissible")
    assert Parser("tags", "admissible")("<action>look</action>", ACTIONS).valid
    assert Parser("tags", "admissible")(said, None).valid  # nothing to hold it against


def test_thought_is_a_rule_of_its_own() -> None:
    parser = Parser("tags", "thought")
    assert parser("<think>x</think><action>look</action>").valid
    assert parser("<action>look</action>") == Parsed("look", valid=False, problem="no thought")
    assert parser("<think></think><action>look</action>").problem == "no thought"


def test_an_action_that_differs_in_case_or_spacing_becomes_the_admissible_one() -> None:
    assert Parser("whole")("Go  to DESK 1", ACTIONS).action == "go to desk 1"
    assert Parser("whole")("LOOK", ("Look", "LOOK")).action == "LOOK"


def test_a_placeholder_admits_what_fills_it() -> None:
    shown = ("search[<your query>]", "click[buy now]")
    assert fit_action("search[red shoes]", shown) == "search[red shoes]"
    assert fit_action("search[]", shown) is None
    assert fit_action("search", shown) is None
    assert fit_action("click[x]", shown) is None


@pytest.mark.parametrize("style", STYLES)
@given(text=anything, rule=st.sampled_from(VALID_RULES))
def test_any_text_is_parsed_or_named(style: str, text: str, rule: str) -> None:
    parser = Parser(style, rule)
    for actions in (None, ACTIONS, ()):
        parsed = parser(text, actions)
        assert parsed.valid or parsed.problem
        assert not parsed.valid or parsed.action
        assert parsed.problem == "" or parsed.problem in PROBLEMS
        assert parsed.action == parsed.action.strip()
        (parsed.action + parsed.thought).encode()  # fit to be written to a file and read by a tokenizer


@given(
    thought=st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"])),
    action=st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), min_size=1),
)
def test_what_is_written_between_tags_is_read_back(thought: str, action: str) -> None:
    parsed = Parser("tags")(f"<think>{thought}</think><action>{action}</action>")
    assert (parsed.thought, parsed.action) == (thought.strip(), action.strip())


@pytest.mark.parametrize(
    "piece", ["<action>", "</action>", "<think>", "<tool_call>", "<tool_call>[", "<action></think>", "<", "[", '<tool_call>{"a":']
)
def test_megabytes_of_tags_are_no_problem(piece: str) -> None:
    for style in STYLES:
        Parser(style, "admissible")(piece * (2_000_000 // len(piece)), ACTIONS)
    assert Parser("tool")("<tool_call>" + "[" * 1_000_000 + "</tool_call>").problem == "tool call is not JSON"
    assert Parser("tool")("<tool_call>" + "9" * 1_000_000 + "</tool_call>").problem == "tool call is not JSON"


def test_unknown_names_are_errors_that_name_the_nearest() -> None:
    with pytest.raises(TurnwiseError, match="Did you mean 'tags'"):
        Parser("tag")
    with pytest.raises(TurnwiseError, match="Did you mean 'admissible'"):
        Parser("tags", "admissable")
