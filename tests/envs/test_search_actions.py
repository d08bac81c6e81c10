"""How a response becomes a search or an answer: in the environment, and in the agent's `verbs` style with the search prompt."""

from __future__ import annotations

import pytest
from agent_tokenizers import QWEN, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from turnwise.agent import Agent, AgentSettings
from turnwise.agent.parse import EMPTY, NO_ACTION, SEVERAL, UNCLOSED_ACTION, UNCLOSED_THOUGHT, Parser
from turnwise.envs.base import Observation
from turnwise.envs.search.actions import LONGEST, Action, read_action
from turnwise.envs.search.env import ACTIONS

FORMS = [
    ("search[capital of England]", Action("search", "capital of England")),
    ("answer[London]", Action("answer", "London")),
    ("  Search [ London ]  ", Action("search", "London")),
    ("answer[list[int]]", Action("answer", "list[int]")),
    ("<search>capital of\n England</search>", Action("search", "capital of England")),
    ("<think>hm</think>\nI will look.\n<search>x</search>", Action("search", "x")),
    ("<think>maybe <answer>no</answer></think><answer>yes</answer>", Action("answer", "yes")),
    ("no opening tag</think><ANSWER>yes</Answer>", Action("answer", "yes")),
    ("<search>one</search><answer>two</answer>", Action("search", "one")),
    ("<think>all thought <answer>x</answer>", None),
    ("<search>never closed", None),
    ("<search></search>", None),
    ("answer[  ]", None),
    ("answer London", None),
    ("please search[x]", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "action"), FORMS)
def test_tags_and_brackets_are_read(text: str, action: Action | None) -> None:
    assert read_action(text) == action


@given(
    st.text(st.characters())
    | st.lists(st.sampled_from(["<search>", "</search>", "<think>", "</think>", "[", "]", "answer", "x"])).map("".join)
)
def test_no_text_raises_and_words_can_be_written(text: str) -> None:
    action = read_action(text)
    assert action is None or (0 < len(action.words) <= LONGEST and action.words.encode())


def test_lone_surrogates_and_endless_words_are_tamed() -> None:
    assert read_action("search[a\ud800b]") == Action("search", "a?b")
    assert read_action(f"answer[{'x' * 100_000}]") == Action("answer", "x" * LONGEST)


VERBS = [
    ("<think>x</think><search> a\nb </search>", "search[a b]", "", True),
    ("<think>x</think>\nSo:\nanswer[42]", "answer[42]", "", True),
    ("<SEARCH>q</search> then <answer>z</answer>", "search[q]", SEVERAL, True),
    ("<search>q", "", UNCLOSED_ACTION, False),
    ("<answer> </answer>", "", EMPTY, False),
    ("I know it", "", NO_ACTION, False),
    ("<think>never <answer>x</answer>", "", UNCLOSED_THOUGHT, False),
    ("<click>buy</click>", "", NO_ACTION, False),
]


@pytest.mark.parametrize(("response", "action", "problem", "valid"), VERBS)
def test_the_agent_reads_tags_named_after_the_verbs_that_the_environment_lists(
    response: str, action: str, problem: str, valid: bool
) -> None:
    parsed = Parser("verbs", "admissible")(response, ACTIONS)
    assert (parsed.action, parsed.problem, parsed.valid) == (action, problem, valid)


def test_verbs_are_those_of_any_environment() -> None:
    parsed = Parser("verbs")("<click>buy now</click>", ("click[<label>]", "look"))
    assert parsed.action == "click[buy now]" and parsed.valid
    assert not Parser("verbs")("<click>buy</click>", None).valid


@pytest.mark.parametrize("action", ["search[who wrote x]", "answer[list[int]]"])
def test_an_example_that_the_agent_writes_is_read_back(action: str) -> None:
    agent = Agent(tokenizer(QWEN), AgentSettings(prompt="search"))
    text, parsed = agent.read(agent.write(action, "I should"), Observation("Question: x", actions=ACTIONS))
    assert parsed.action == action and parsed.thought == "I should" and parsed.valid
    assert read_action(text) == read_action(action)
