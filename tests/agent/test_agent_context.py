"""Prompts grow from the past: windows, the full dialogue, what happens at the limit, and contexts of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from agent_tokenizers import ALL, LLAMA, tokenizer
from context_cases import make, seen, text

from turnwise.agent import Agent, AgentSettings, Parsed
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation
from turnwise.learn.tiny import build_tokenizer
from turnwise.util.errors import TurnwiseError

TASK = Task("1")
FIRST = Observation("You are in a room.\n\nYour task is to: put a mug in desk.", actions=("go to desk 1", "help", "look"))
templates: dict[str, str | None] = {**ALL, "plain": None}


def play(agent: Agent, turns: int, thought: str = "hm") -> tuple[list[Any], list[list[int]]]:
    """The prompts and responses of an episode in which the agent goes from desk to desk."""
    context = agent.context()
    context.start(TASK, FIRST)
    prompts, responses = [], []
    observation = FIRST
    for number in range(1, turns + 1):
        prompts.append(context.prompt())
        responses.append(agent.write(f"go to desk {number}", thought))
        _, parsed = agent.read(responses[-1], observation)
        assert parsed.action == f"go to desk {number}"
        observation = seen(number)
        context.record(responses[-1], parsed, observation)
    return [*prompts, context.prompt()], responses


@pytest.mark.parametrize("name", templates)
@pytest.mark.parametrize("prompt", ["think", "action", "tool"])
def test_both_contexts_start_with_the_same_prompt(name: str, prompt: str) -> None:
    first = [play(make(templates[name], context=context, prompt=prompt, system="Be brief."), 0)[0][0] for context in ("window", "full")]
    assert list(first[0].ids) == list(first[1].ids) and first[0].messages == first[1].messages


@pytest.mark.parametrize("name", [*templates, "tiny"])
@pytest.mark.parametrize("prompt", ["think", "action", "tool"])
def test_in_the_full_dialogue_each_prompt_continues_the_last_one_as_sampled(name: str, prompt: str) -> None:
    made = build_tokenizer([FIRST.text]) if name == "tiny" else tokenizer(templates[name])
    prompts, responses = play(Agent(made, AgentSettings(context="full", prompt=prompt, max_prompt_tokens=10_000)), 4)
    for before, response, after in zip(prompts, responses, prompts[1:], strict=False):
        whole = [*before.ids, *response]
        assert list(after.ids[: len(whole)]) == whole
        assert after.dropped == 0 and after.fits


def test_a_window_shows_the_goal_and_the_last_turns_but_no_thoughts() -> None:
    agent = make(context="window", history=2)
    shown = text(agent, play(agent, 4, thought="a secret")[0][-1])
    assert "Your task is to: put a mug in desk." in shown and "You are in a room." not in shown
    assert [n for n in range(1, 6) if f"You arrive at place {n}." in shown] == [2, 3, 4]
    assert [n for n in range(1, 6) if f"Your action: go to desk {n}\n" in shown] == [3, 4]
    assert "a secret" not in shown and "turn 5" in shown


@pytest.mark.parametrize(("history", "expected"), [(0, []), (1, [4]), (3, [2, 3, 4]), (99, [1, 2, 3, 4])])
def test_a_window_is_as_long_as_asked_for(history: int, expected: list[int]) -> None:
    agent = make(context="window", history=history)
    shown = text(agent, play(agent, 4)[0][-1])
    assert [n for n in range(1, 5) if f"Your action: go to desk {n}\n" in shown] == expected


def test_a_window_that_is_too_long_drops_its_oldest_turns_first() -> None:
    whole = len(play(make(history=3), 5)[0][-1].ids)
    agent = make(history=3, max_prompt_tokens=whole - 1)
    prompt = play(agent, 5)[0][-1]
    assert prompt.dropped == 1 and prompt.fits and len(prompt.ids) < whole
    assert "Your action: go to desk 3\n" not in text(agent, prompt) and "Your action: go to desk 4\n" in text(agent, prompt)


@pytest.mark.parametrize("context", ["window", "full"])
def test_a_prompt_that_cannot_fit_says_so(context: str) -> None:
    prompts, _ = play(make(context=context, max_prompt_tokens=5), 3)
    assert [prompt.fits for prompt in prompts] == [False] * 4
    assert prompts[3].dropped == (2 if context == "window" else 3)


def test_a_dialogue_that_is_too_long_starts_again_later_and_then_goes_on() -> None:
    agent = make(context="full", max_prompt_tokens=600)
    prompts, responses = play(agent, 30)
    assert all(prompt.fits and len(prompt.ids) <= 600 for prompt in prompts)
    starts = [
        number
        for number, (before, response, after) in enumerate(zip(prompts, responses, prompts[1:], strict=False), 1)
        if list(after.ids[: len(before.ids) + len(response)]) != [*before.ids, *response]
    ]
    assert 0 < len(starts) < 15  # not a new sequence with every turn
    last = prompts[-1]
    assert last.dropped == prompts[starts[-1]].dropped > 0
    assert "Your task is to: put a mug in desk." in text(agent, last)
    kept = [n for n in range(1, 31) if f"<action>go to desk {n}</action>" in text(agent, last)]
    assert kept == list(range(last.dropped + 1, 31))  # the responses of all turns that were not dropped


def test_what_a_shortened_dialogue_keeps_it_keeps_as_sampled() -> None:
    agent = make(context="full", max_prompt_tokens=600)
    context = agent.context()
    context.start(TASK, FIRST)
    odd = [token for letter in "<action>look</action>" for token in agent.chat.encode(letter)]
    dropped = 0
    while not dropped:
        context.record(odd, Parsed("look"), seen(1))
        prompt = context.prompt()
        dropped = prompt.dropped
    ids = list(prompt.ids)
    assert any(ids[place : place + len(odd)] == odd for place in range(len(ids)))


def test_messages_say_the_same_as_the_ids() -> None:
    for context in ("window", "full"):
        agent = make(LLAMA, context=context, system="Be brief.", max_prompt_tokens=500)
        for prompt in play(agent, 12)[0]:
            assert agent.chat.render(prompt.messages) == text(agent, prompt)


def test_a_tool_answers_in_its_own_role_where_the_template_has_one() -> None:
    agent = make(context="full", prompt="tool")
    shown = text(agent, play(agent, 1)[0][-1])
    assert "<tool_response>\nYou arrive at place 1." in shown and '"name": "act"' in shown.partition("<|im_start|>user")[0]
    plain = make(LLAMA, context="full", prompt="tool")
    assert '{"name": "the tool"' in text(plain, play(plain, 0)[0][0])


def test_a_response_that_called_no_tool_gets_an_ordinary_message() -> None:
    agent = make(context="full", prompt="tool")
    context = agent.context()
    context.start(TASK, FIRST)
    said = agent.chat.answer_ids("I would rather not.")
    context.record(said, agent.read(said, FIRST)[1], seen(1))
    shown = text(agent, context.prompt())
    assert "<tool_response>" not in shown and "You arrive at place 1." in shown


def test_the_goal_comes_from_the_first_observation_or_the_task() -> None:
    agent = make()
    for task, observation, goal in (
        (Task("1", data={"goal": "Find it."}), Observation("A room."), "Find it."),
        (TASK, Observation("Find the key in the room."), "Find the key in the room."),
        (Task("1", data={"goal": 7}), FIRST, "Your task is to: put a mug in desk."),
    ):
        context = agent.context()
        context.start(task, observation)
        assert goal in text(agent, context.prompt())
        for number in range(3):
            context.record([], Parsed("look"), seen(number))
        assert goal in text(agent, context.prompt())


def test_an_expert_action_is_written_as_it_will_be_read() -> None:
    for prompt in ("think", "action", "tool"):
        agent = make(prompt=prompt)
        ids = agent.write("go to desk 1")
        assert ids[-1] in agent.stop_ids
        assert agent.read(ids, FIRST)[1] == Parsed("go to desk 1")
    assert make().read(make().write("look", "why not"), FIRST)[1] == Parsed("look", "why not")


# ---- contexts of one's own


DOCS = (Path(__file__).parents[2] / "docs" / "guides" / "agent.md").read_text(encoding="utf-8")


def example(name: str, folder: Path) -> str:
    """A file that the page tells the reader to save."""
    found = re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None, name
    path = folder / name
    path.write_text(found.group(1), encoding="utf-8")
    return str(path)


def test_the_documented_window_of_ones_own(tmp_path: Path) -> None:
    agent = make(context=example("notes.py", tmp_path) + ":Notes", options={"keep": 2})
    context = agent.context()
    context.start(TASK, FIRST)
    for number, after in enumerate(("You open it.", "Nothing happens.", "You take it.", "You see a mug."), 1):
        context.record([], Parsed(f"try {number}"), Observation(after))
    shown = text(agent, context.prompt())
    assert [n for n in range(1, 5) if f"Your action: try {n}\n" in shown] == [3, 4]


def test_the_documented_context_from_scratch(tmp_path: Path) -> None:
    agent = make(context=example("summary.py", tmp_path) + ":Summary", max_prompt_tokens=400)
    prompts, _ = play(agent, 20)
    assert "You did: nothing." in text(agent, prompts[0])
    assert "You did: go to desk 1, then go to desk 2." in text(agent, prompts[2])
    assert prompts[-1].fits and prompts[-1].dropped > 0


def test_the_documented_template(tmp_path: Path) -> None:
    agent = make(prompt=example("short.jinja", tmp_path))
    prompts, _ = play(agent, 2)
    assert prompts[2].messages[0]["content"].splitlines() == [
        "Your task is to: put a mug in desk.",
        "You are in a room.",
        "",
        "Your task is to: put a mug in desk. You did: go to desk 1",
        "You arrive at place 1. You did: go to desk 2",
        "You arrive at place 2.",
        "Possible: look; go to desk 2",
        "Answer with <action>one action</action>.",
    ]


def test_wrong_contexts_are_clear_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Half:\n    def __init__(self, maker): ...\n    def start(self, task, observation): ...\nthing = 3\n")
    for name, message in (
        ("windw", "unknown context 'windw'. Did you mean 'window'"),
        (str(path), "say which class"),
        (f"{path}:Half", r"Half has no method prompt\(\)"),
        (f"{path}:thing", "is int, not a class"),
        (f"{path}:Other", "unknown name in .*Known: Half"),
        (str(tmp_path / "none.py:X"), "there is no file"),
    ):
        with pytest.raises(TurnwiseError, match=message):
            make(context=name)
    with pytest.raises(TurnwiseError, match=r"option of context .*: 'kep'"):
        make(context=example("notes.py", tmp_path) + ":Notes", options={"kep": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parse": "tag"}, "Did you mean 'tags'"),
        ({"valid": "parse"}, "Did you mean 'parsed'"),
        ({"history": -1}, "history: must be at least 0, got -1"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens: must be at least 1"),
        ({"prompt": "tool", "valid": "thought"}, "valid='parsed'"),
    ],
)
def test_wrong_settings_are_clear_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        AgentSettings(**settings)
