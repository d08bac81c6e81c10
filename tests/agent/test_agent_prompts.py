"""Prompt templates: ours, a user's own, and errors that say where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnwise.agent import Past, PromptTemplate, View
from turnwise.agent.prompts import NAMES, load_template
from turnwise.util.errors import TurnwiseError

LATER = View("You see a mug.", "Your task is to: find a mug.", 3, history=[Past(2, "A room.", "look")], actions=["look", "take mug 1"])
FOR_PLAY = [name for name in NAMES if name != "text"]  # that one is a user's own prompt and nothing else


def own(folder: Path, source: str) -> str:
    path = folder / "mine.jinja"
    path.write_text(source, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", FOR_PLAY)
def test_every_prompt_shows_what_there_is_to_see(name: str) -> None:
    shown = load_template(name).render(LATER)
    for part in (LATER.goal, "A room.", "look", "You see a mug.", "take mug 1"):
        assert part in shown
    assert shown == shown.strip()


@pytest.mark.parametrize("name", FOR_PLAY)
def test_a_later_message_of_a_dialogue_says_the_new_observation_and_the_actions(name: str) -> None:
    shown = load_template(name).render(View("You see a mug.", "Find it.", 3, opening=False, actions=["take mug 1"], instructions="Rules."))
    assert shown.startswith("You see a mug.") and "take mug 1" in shown
    assert "Rules." not in shown
    assert ("Find it." in shown) == (name == "remind")


@pytest.mark.parametrize("name", NAMES)
def test_instructions_are_shown_at_the_start(name: str) -> None:
    assert "Rules of the house." in load_template(name).render(View("A room.", "A room.", instructions="Rules of the house."))


@pytest.mark.parametrize("name", FOR_PLAY)
def test_a_goal_that_the_first_observation_says_is_not_said_twice(name: str) -> None:
    template = load_template(name)
    assert template.render(View("A room. Find it.", "Find it.")).count("Find it.") == 1
    assert template.render(View("A room.", "Find it.")).count("Find it.") == 1


def test_the_bare_prompt_is_bare() -> None:
    assert load_template("action").render(View("A room.", "A room.")) == "A room."
    assert load_template("action").render(View("A room.", opening=False, turn=4)) == "A room."


def test_texts_are_not_run_as_templates() -> None:
    evil = "{{ 7 * 7 }} {% raw %} <b>&amp;</b>"
    for name in NAMES:
        assert evil in load_template(name).render(View(evil, evil))


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("{{ goal }}\n\n{{ observatoin }}", 3, "'observatoin' is undefined. The variables are: observation, goal"),
        ("{% if opening %}\n{% endfor %}", 2, "unknown tag 'endfor'"),
        ("{% for past in history %}\n\n{{ past.thought }}{% endfor %}", 3, "has no attribute 'thought'"),
        ("a\n{{ turn / 0 }}", 2, "ZeroDivisionError"),
        ("a\n{{ turn.__class__.__mro__ }}", 2, "unsafe"),
        ("\n{% include 'x' %}", 2, "no loader"),
    ],
)
def test_errors_name_the_template_and_the_line(tmp_path: Path, source: str, line: int, message: str) -> None:
    path = own(tmp_path, source)
    with pytest.raises(TurnwiseError, match=message) as caught:
        PromptTemplate(path)
    assert f"{path}, line {line}:" in str(caught.value)


def test_a_template_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = own(tmp_path, "one")
    assert load_template(path).render(LATER) == "one"
    own(tmp_path, "two")
    os.utime(path, ns=(1, 1))
    assert load_template(path).render(LATER) == "two"


def test_unknown_prompts_are_clear_errors() -> None:
    with pytest.raises(TurnwiseError, match="Did you mean 'think'"):
        load_template("thnk")
    with pytest.raises(TurnwiseError, match=r"there is no prompt template nowhere/mine\.jinja"):
        load_template("nowhere/mine.jinja")
