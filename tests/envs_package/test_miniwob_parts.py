"""What of the browser environment needs no browser: actions as text, pages as text, the simple rule, and messages for what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from turnwise.pages.pictures import LARGEST, take_screenshots
from turnwise_envs.miniwob import browser, kinds
from turnwise_envs.miniwob.actions import Malformed, Move, read_action
from turnwise_envs.miniwob.experts import advise, known
from turnwise_envs.miniwob.rule import simple_rule
from turnwise_envs.miniwob.view import Item, Look, describe, line_of, plausible, read_look

FORM = Look(
    'Enter "Ann" into the text field and press Submit.',
    (Item(1, "textbox", value=""), Item(0, "plain", "or"), Item(2, "button", "Submit"), Item(3, "area", "list", scroll=(0, 40))),
)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("click 3", Move("click", 3)),
        (" Click  [3] ", Move("click", 3)),
        ("click 12 34", Move("click", (12, 34))),
        ("click 12, 34", Move("click", (12, 34))),
        ("hover 2", Move("hover", 2)),
        ('type 1 "two  words"', Move("type", 1, words="two  words")),
        ("type 1 bare words", Move("type", 1, words="bare words")),
        ('type 1 "say "hi""', Move("type", 1, words='say "hi"')),
        ('type 1 ""', Move("type", 1)),
        ('select 4 "Utah"', Move("select", 4, words="Utah")),
        ("press Enter", Move("press", words="enter")),
        ("press Ctrl+C", Move("press", words="control+c")),
        ("press A", Move("press", words="A")),
        ("scroll down", Move("scroll", words="down")),
        ("scroll 2 up", Move("scroll", 2, words="up")),
        ("drag 1 to 2", Move("drag", 1, 2)),
        ("drag 1 2 to 30 40", Move("drag", (1, 2), (30, 40))),
        ("wait", Move("wait")),
    ],
)
def test_actions_are_read(text: str, move: Move) -> None:
    assert read_action(text) == move


@pytest.mark.parametrize(
    "text", ["", "click", "click me", "press F13", "press <", "scroll left", "drag 1", "\x00", "a" * 10_000, "click 99999"]
)
def test_other_texts_are_answered_with_help(text: str) -> None:
    with pytest.raises(Malformed, match=r"Actions: click N|Keys: enter"):
        read_action(text)


def test_typed_text_cannot_become_html_and_is_not_endless() -> None:
    assert read_action('type 1 "<img src=x onerror=alert(1)>\ud800\x00"').words == "img src=x onerror=alert(1)>"
    assert len(read_action(f'type 1 "{"a" * 10_000}"').words) == 500


def test_a_page_is_a_line_for_each_thing() -> None:
    assert describe(FORM, False, 4000) == '1 textbox = ""\nor\n2 button "Submit"\n3 area "list" (scrolled 0 of 40)'
    assert describe(FORM, False, 30).endswith("(the rest is not shown)")
    seen = replace(FORM, clicked=frozenset({2}))
    assert '2 button "Submit" (clicked)' in describe(seen, True, 4000) and "clicked" not in describe(seen, False, 4000)
    shape = Item(5, "polygon", colour="red", corners=3, place=True, x=10, y=20, width=8, height=6)
    assert line_of(shape) == "5 polygon red 3 corners 8x6 at 14,23"
    assert line_of(Item(6, "checkbox", "tea", checked=True, states=("focused",))) == '6 checkbox "tea" (checked, focused)'
    assert line_of(Item(7, "select", value="a", options=("a", "b"))) == '7 select = "a" of: a, b'
    assert len(line_of(Item(8, "textarea", value="word " * 1000))) < 600


def test_colours_have_names() -> None:
    line = {"n": 1, "kind": "box", "text": "", "colour": "#ff0000", "states": [], "scroll": None}
    page = {"utterance": "Click #00ffff or #123456", "lines": [line], "whole": "", "clicked": [], "done": False, "reward": 0}
    look = read_look(page | {"reason": "", "page": "/x.html", "clock": 1000})
    assert look.items[0].colour == "red" and look.utterance == "Click aqua or #123456"


def test_listed_actions_are_few_and_make_sense() -> None:
    assert plausible(FORM) == ('type 1 "Ann"', "click 1", "click 2", "scroll down", "scroll up")
    many = replace(FORM, items=tuple(Item(n, "button", "x") for n in range(1, 200)))
    assert len(plausible(many)) == 80


def test_the_simple_rule_fills_and_submits() -> None:
    assert simple_rule(FORM) == 'type 1 "Ann"'
    filled = replace(FORM, items=(Item(1, "textbox", value="Ann"), Item(2, "button", "Submit")))
    assert simple_rule(filled) == "click 2"
    boxes = Look("Select tea and click Submit.", (Item(1, "checkbox", "milk"), Item(2, "checkbox", "tea"), Item(3, "button", "Submit")))
    assert simple_rule(boxes) == "click 2"


def test_experts_know_more_than_a_hundred_kinds_less_than_all() -> None:
    assert len(known()) >= 100
    assert advise("enter-text", FORM) == 'type 1 "Ann"'
    assert advise("no-such-kind", FORM) is None
    assert not known() & set(kinds.LEFT_OUT)


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    with pytest.raises(
        tw.TurnwiseError, match=r"^miniwob needs an optional package. Install it with: pip install .*turnwise-envs\[miniwob\]'$"
    ):
        kinds.folder()
    monkeypatch.setenv("TURNWISE_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(tw.TurnwiseError, match=r"^miniwob needs Chromium. Install it \(apt-get install chromium\)"):
        tw.make("miniwob")
    with pytest.raises(tw.TurnwiseError, match=r"^miniwob needs Chromium"):
        browser.Browser()


def test_pages_take_small_images_only() -> None:
    good, bad = "data:image/webp;base64,AAAA", "data:text/html;base64,AAAA"
    turn: dict[str, Any] = {"info": {"env": {"screenshot": good, "screenshot_after": bad, "understood": True}}}
    assert take_screenshots(turn) == [good] and turn["info"] == {"env": {"understood": True}}
    assert take_screenshots({"info": {"env": {"screenshot": f"data:image/png;base64,{'A' * LARGEST}"}}}) == []
    for odd in ({}, {"info": []}, {"info": {"env": 3}}, {"info": {"env": {"screenshot": 3}}}):
        assert take_screenshots(odd) == []


def test_a_browser_that_does_not_start_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\necho one >&2\necho 'libnss3.so: cannot open' >&2\nexit 127\n")
    fake.chmod(0o755)
    monkeypatch.setenv("TURNWISE_CHROMIUM", str(fake))
    with pytest.raises(browser.BrowserGone, match=r"did not start: the browser ended with code 127 \(libnss3.so: cannot open\)") as told:
        browser.Browser()
    assert "\n" not in str(told.value)
