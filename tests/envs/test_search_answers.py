"""When an answer is right: SQuAD's normalisation, exact match and F1, against a table made by hand."""

from __future__ import annotations

import pytest
from agent_tokenizers import QWEN, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from turnwise.agent import Agent, AgentSettings
from turnwise.agent.parse import EMPTY, NO_ACTION, SEVERAL, UNCLOSED_ACTION, UNCLOSED_THOUGHT, Parser
from turnwise.envs.base import Observation
from turnwise.envs.search.answers import LONGEST, Action, exact_match, f1, normalise, read_action
from turnwise.envs.search.env import ACTIONS

NORMAL = [
    ("The Beatles", "beatles"),
    ("  a   an  the  ", ""),
    ("U.S.A.", "usa"),
    ("Jean-Luc", "jeanluc"),
    ("theatre", "theatre"),
    ("An apple a day", "apple day"),
    ("December 14, 1972", "december 14 1972"),
    ("rock 'n' roll", "rock n roll"),
    ("Ștefan", "ștefan"),
    ("the-end", "theend"),
    ("1,000", "1000"),
    ("\tnew\nline ", "new line"),
]
MATCHES = [
    ("The Beatles!", ["beatles"], True, 1.0),
    ("john lennon", ["Paul McCartney", "John Lennon"], True, 1.0),
    ("Lennon", ["John Lennon"], False, 2 / 3),
    ("John Winston Lennon", ["John Lennon"], False, 0.8),
    ("new new york", ["new york york"], False, 2 / 3),
    ("red blue", ["green"], False, 0.0),
    ("14 December 1972", ["December 1972", "14 December 1972 UTC"], False, 6 / 7),
    ("yes", ["no"], False, 0.0),
    ("!!!", ["!!!"], True, 1.0),
    ("the", ["!!!"], False, 0.0),
    ("The The", ["the the"], True, 1.0),
    ("a", ["The The"], False, 0.0),
    ("", ["The The"], False, 0.0),
    ("the", ["Rome"], False, 0.0),
]


@pytest.mark.parametrize(("text", "plain"), NORMAL)
def test_texts_are_normalised_as_squad_does(text: str, plain: str) -> None:
    assert normalise(text) == plain


@pytest.mark.parametrize(("answer", "accepted", "right", "overlap"), MATCHES)
def test_exact_match_and_f1_are_those_of_the_table(answer: str, accepted: list[str], right: bool, overlap: float) -> None:
    assert exact_match(answer, accepted) is right
    assert f1(answer, accepted) == pytest.approx(overlap)


@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=3))
def test_scores_stay_in_their_range_and_a_match_has_f1_one(answer: str, accepted: list[str]) -> None:
    assert 0.0 <= f1(answer, accepted) <= 1.0
    if exact_match(answer, accepted):
        assert f1(answer, accepted) == 1.0


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
