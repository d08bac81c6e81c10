"""Tasks whose solution needs more than is on the page: words of the page's own script, a clock, a calendar, a list of airports."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from turnwise_envs.miniwob.experts.base import click, expert, fill, first, press, said
from turnwise_envs.miniwob.experts.mail import answer
from turnwise_envs.miniwob.experts.widgets import calendar
from turnwise_envs.miniwob.kinds import folder
from turnwise_envs.miniwob.view import Item, Look

HALF_HOURS = {"0.5 hours": 1, "30 mins": 1, "1 hour": 2, "60 mins": 2, "1.5 hours": 3, "90 mins": 3}
WINDOWS = {"8AM": 16, "12PM": 24, "4PM": 32}  # the half hour of the day in which they begin
STYLES = {"bold": ("bold", "STRONG"), "italics": ("italic", "EM"), "underlined": ("underline", "U")}  # the button, and what it makes
COLOURS = {"red": "#e60000", "orange": "#ff9900", "yellow": "yellow", "green": "#008a00", "blue": "#0066cc", "purple": "#9933ff"}


@cache
def written(page: str, name: str) -> Any:
    """A list or table of a page's script, by its name."""
    text = (folder() / page).resolve().read_text()
    start = text.index(f"var {name} = ") + len(f"var {name} = ")
    body = re.sub(r"//[^\n]*", "", text[start : text.index(";", start)]).replace("'", '"') if page.endswith(".html") else text[start:]
    body = re.sub(r",(\s*[\]}])", r"\1", body.strip().rstrip(";"))
    return json.loads(body)


@expert("ascending-numbers")
def ascending(look: Look) -> str | None:
    return click(first(look, kind="text", text="1") or first(look, kind="rect"))


@expert("button-delay")
def delayed(look: Look) -> str | None:
    (seconds,) = said(look, r"wait (\d) seconds")
    one, two = first(look, text="ONE"), first(look, text="TWO")
    if one is None or two is None or one.n not in look.clicked:
        return click(one)
    return click(two) if look.clock // 1000 > int(seconds) else "wait"


@expert("click-checkboxes-soft")
def similar(look: Look) -> str | None:
    (words,) = said(look, r"similar to (.*) and click")
    groups = written("click-checkboxes-soft.html", "SYNONYMS")
    wanted = {word for group in groups if set(group) & set(words.split(", ")) for word in group}
    box = next((item for item in look.find(kind="checkbox") if bool(item.checked) != (item.text in wanted)), None)
    return click(box) or press(look)


@expert("number-checkboxes")
def drawn(look: Look) -> str | None:
    (number,) = said(look, r'number "(\d)"')
    wanted = [bool(value) for row in written("number-checkboxes.html", "PATTERNS")[int(number)] for value in row]
    boxes = zip(look.find(kind="checkbox"), wanted, strict=True)
    return click(next((box for box, value in boxes if bool(box.checked) != value), None)) or press(look)


@expert("use-colorwheel-2")
def any_colour(look: Look) -> str | None:
    (wanted,) = said(look, r"color #(\w{6})")
    box = look.find(kind="textbox")[0]
    return fill([(box, wanted.upper())]) or ("click 150 20" if look.find(kind="canvas") else press(look))


@expert("email-inbox-nl-turk", "email-inbox-forward-nl-turk")
def told_mail(look: Look) -> str | None:
    for action, texts in written("../common/special/email-inbox-nl/templates.js", "TEMPLATES").items():
        for template in (*texts["train"], *texts["test"]):
            pattern = re.escape(template)
            for word, group in (("NAME", r"(?P<name>\w+)"), ("DEST", r"(?P<to>\w+)"), ("MSG", r"(?P<text>.*)")):
                pattern = pattern.replace(word, group, 1)
            if found := re.fullmatch(pattern, look.utterance):
                parts = found.groupdict()
                return answer(look, action, parts["name"], parts.get("to") or "", parts.get("text") or "")
    return None


@expert("drag-items-grid")
def drag_in_grid(look: Look) -> str | None:
    name, place = said(look, r"Drag (\w+) (.*)\.")
    items = [item for item in look.items if item.n and item.kind == "text"]
    here = next(number for number, item in enumerate(items) if item.text == name)
    steps = {"up by one": -3, "down by one": 3, "left by one": -1, "right by one": 1}
    rows, columns = {"top": 0, "center": 1, "bottom": 2}, {"left": 0, "center": 1, "right": 2}
    words = place.removeprefix("to the ").split()
    there = here + steps[place] if place in steps else 3 * rows[words[0]] + columns[words[-1]]
    x, y = items[there].middle
    onward = there > here and there % 3 >= here % 3  # a little beyond the middle of the one that makes room
    return f"drag {items[here].n} to {x + (6 if onward else -6)} {y}"


@expert("book-flight", "book-flight-nodelay")
def book(look: Look) -> str | None:
    wish, origin, goal = said(look, r"Book the (\w+) one-way flight from: (.*) to: (.*) on \d")
    offers = [item for item in look.items if item.n and item.text.startswith("Book flight for $")]
    if offers:
        return click(_best(look, offers, wish))
    boxes = look.find(kind="textbox")
    for box, words in zip(boxes, (origin, goal), strict=False):
        if not (box.value or "").endswith(")") or words not in (box.value or ""):
            listed = [item for item in look.items if item.n and _airport(item.text, words)]
            return click(listed[0]) if listed and box.value == words else f'type {box.n} "{words}"'
    (date,) = said(look, r"on (\d+/\d+/\d+)")
    return press(look, "Search") if boxes[2].value == date else calendar(look, boxes[2])


def _airport(text: str, words: str) -> bool:
    return text.endswith(")") and (f"({words})" in text or text.startswith(f"{words} ("))


def _best(look: Look, offers: list[Item], wish: str) -> Item:
    """The cheapest or shortest of the flights."""
    times = [found for item in look.items if (found := re.fullmatch(r"(\d+)h (\d+)m", item.text))]
    prices = [int(item.text.partition("$")[2]) for item in offers]
    lengths = [60 * int(found[1]) + int(found[2]) for found in times]
    costs = prices if wish == "cheapest" else lengths
    return offers[costs.index(min(costs))]


@expert("daily-calendar")
def event(look: Look) -> str | None:
    length, name, window = said(look, r'Create a (.*?) event named "(\w+)", between (\w+)')
    if box := first(look, kind="textbox"):
        return fill([(box, name)]) or press(look, "Create")
    slots, count = look.find(text="half-hour"), HALF_HOURS[length]
    taken = [item for item in look.items if item.cls.startswith("event ")]
    for start in range(WINDOWS[window], WINDOWS[window] + 9 - count):
        chosen = slots[start : start + count]
        top, bottom = chosen[0].y + 4, chosen[-1].y + chosen[-1].height - 4
        if not any(item.y < bottom and top < item.y + item.height for item in taken):
            return f"drag {chosen[0].n} to {chosen[-1].n}"
    return None


@expert("text-editor")
def styled(look: Look) -> str | None:
    (word,) = said(look, r"give the text (\S+) the")
    style, colour = said(look, r"the style (\w+)")[0], said(look, r"the color (\w+)")[0]
    editor = look.find(kind="editor")[0]
    if f"<{STYLES[style][1]} " in look.whole if style else "style=color: " in look.whole:
        return press(look)
    if not look.whole.rpartition("|")[2].strip():  # nothing is highlighted
        return f'select {editor.n} "{word or editor.value}"'
    return press(look, STYLES[style][0]) if style else click(first(look, kind="box", colour=COLOURS[colour]) or first(look, kind="box"))
