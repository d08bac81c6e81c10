"""Tasks that are done with clicks on what the task names."""

from __future__ import annotations

import colorsys
import re

from turnwise_envs.miniwob.experts.base import after, click, expert, first, press, said
from turnwise_envs.miniwob.view import Item, Look, quoted


@expert("click-test")
def any_button(look: Look) -> str | None:
    return click(first(look, kind="button"))


@expert("click-test-2", "click-test-transfer")
def named_button(look: Look) -> str | None:
    (name,) = said(look, r"button (\w+)")
    return press(look, name)


@expert("click-button", "unicode-test")
def quoted_button(look: Look) -> str | None:
    return click(first(look, kind="button", text=quoted(look.utterance)[0]))


@expert("click-button-sequence")
def buttons_in_order(look: Look) -> str | None:
    one = first(look, text="ONE")
    return press(look, "TWO" if one and one.n in look.clicked else "ONE")


@expert("click-link")
def link(look: Look) -> str | None:
    return click(first(look, kind="link", text=quoted(look.utterance)[0]))


@expert("click-tab")
def tab(look: Look) -> str | None:
    (name,) = said(look, r"on (Tab #\d+)")
    return click(first(look, kind="link", text=name))


def _search(look: Look, tabs: list[Item]) -> str | None:
    """Click the link if it is in sight, else open the part behind the one that is open."""
    wanted = quoted(look.utterance)[0]
    here = [item for item in look.find(kind="link", text=wanted) if item not in tabs]
    if here or not tabs:
        return click(here[0] if here else None)
    chosen = [place for place, item in enumerate(tabs) if {"selected", "open"} & set(item.states)]
    return click(tabs[(chosen[0] + 1) % len(tabs) if chosen else 0])


@expert("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def link_in_tabs(look: Look) -> str | None:
    return _search(look, [item for item in look.find(kind="link") if "ui-tabs-anchor" in item.cls])


@expert("click-collapsible-2", "click-collapsible-2-nodelay")
def link_in_sections(look: Look) -> str | None:
    return _search(look, look.find(kind="tab"))


@expert("click-collapsible", "click-collapsible-nodelay")
def section(look: Look) -> str | None:
    part = first(look, kind="tab")
    return press(look) if part is None or {"selected", "open"} & set(part.states) else click(part)


@expert("click-dialog")
def dialog(look: Look) -> str | None:
    return press(look, "Close")


@expert("click-dialog-2")
def dialog_button(look: Look) -> str | None:
    name = quoted(look.utterance)[0]
    return press(look, "Close" if name == "x" else name)


@expert("click-menu")
def menu(look: Look) -> str | None:
    path = look.utterance.removeprefix("Select ").split(">")
    shown = [first(look, kind=("item", "text"), text=name.strip()) for name in path]
    open_to = [item for item in shown if item is not None]
    return click(shown[-1]) if shown[-1] is not None else f"hover {open_to[-1].n}" if open_to else None


@expert("click-menu-2")
def icon_menu(look: Look) -> str | None:
    (name,) = said(look, r'labeled "(.*?)"')
    (icon,) = said(look, r"with the ([\w-]+) icon")
    found = first(look, text=name) if name else next((item for item in look.items if f"icon {icon}" in item.states), None)
    if found is not None:
        return click(found)
    inner = first(look, text="Playback")
    return click(inner) if inner else press(look, "Menu")


@expert("click-color")
def colour(look: Look) -> str | None:
    (name,) = said(look, r"the (\S+) colored")
    return click(first(look, kind="box", colour={"cyan": "aqua", "grey": "gray"}.get(name, name)))


@expert("click-shades")
def shades(look: Look) -> str | None:
    (name,) = said(look, r"shades of (\w+)")
    wanted = {"red": 0, "green": 120, "blue": 240}[name]
    for item in look.find(kind="box"):
        red, green, blue = (int(item.colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        hue = colorsys.rgb_to_hsv(red, green, blue)[0] * 360
        if min(abs(hue - wanted), 360 - abs(hue - wanted)) < 40 and "selected" not in item.states:
            return click(item)
    return press(look)


def shape_fits(item: Item, words: str) -> bool:
    """Whether a shape is what the words say: size, colour and kind."""
    sizes = re.findall(r"\b(small|large)\b", words)
    colours = re.findall(r"\b(red|green|blue|aqua|black|magenta|yellow)\b", words)
    size = "small" if max(item.height, item.width) < 15 else "large"
    one = re.search(r"\b(\w)s?(?= are there|$)", words)
    if one and one[1] not in "a":
        return item.text == one[1] and sizes in ([], [size]) and colours in ([], [item.colour])
    kinds = {
        "circle": item.kind == "circle",
        "rectangle": item.kind == "rect",
        "triangle": item.kind == "polygon",
        "letter": item.kind == "text" and item.text.isalpha(),
        "digit": item.kind == "text" and item.text.isdigit(),
        "item": True,
    }
    named = [fits for name, fits in kinds.items() if name in words]
    return all(named) and sizes in ([], [size]) and colours in ([], [item.colour])


@expert("click-shape")
def shape(look: Look) -> str | None:
    return click(next((item for item in look.items if item.place and shape_fits(item, look.utterance.partition("Click on a")[2])), None))


@expert("count-shape")
def count(look: Look) -> str | None:
    words = look.utterance.removeprefix("How many ")
    return press(look, str(sum(item.place and shape_fits(item, words) for item in look.items)))


@expert("identify-shape")
def identify(look: Look) -> str | None:
    item = next(item for item in look.items if item.place)
    kinds = {"circle": "Circle", "rect": "Rectangle", "polygon": "Triangle", "text": "Number" if item.text.isdigit() else "Letter"}
    return press(look, kinds[item.kind])


@expert("click-widget")
def widget(look: Look) -> str | None:
    kinds = {"text": "textbox", "textarea": "textarea", "button": "button", "radio": "radio", "checkbox": "checkbox"}
    return click(first(look, kind=kinds[quoted(look.utterance)[0]]))


@expert("click-pie", "click-pie-nodelay")
def pie(look: Look) -> str | None:
    found = next((item for item in look.find(kind="text", text=quoted(look.utterance)[0]) if max(item.height, item.width) > 5), None)
    return click(found or first(look, kind="text", text="+"))


@expert("grid-coordinate")
def coordinate(look: Look) -> str | None:
    x, y = said(look, r"\((-?\d+),\s*(-?\d+)\)")
    axes = look.find(kind="line")
    across, down = next(item for item in axes if item.height < item.width), next(item for item in axes if item.width < item.height)
    dots = look.find(kind="circle")
    step = min(abs(a.middle[0] - b.middle[0]) for a in dots for b in dots if abs(a.middle[0] - b.middle[0]) > 5)
    spot = down.middle[0] + int(x) * step, across.middle[1] - int(y) * step
    return click(min(dots, key=lambda item: abs(item.middle[0] - spot[0]) + abs(item.middle[1] - spot[1])))


@expert("buy-ticket")
def ticket(look: Look) -> str | None:
    offers = look.find(kind="button")
    prices = [int(re.sub(r"\D", "", item.text)) for item in offers]
    times = [(int(m[1]) * 60 + int(m[2])) for item in look.items if (m := re.fullmatch(r"(\d+)h (\d+)m", item.text))]
    values = times if "duration" in look.utterance or "fastest" in look.utterance or "shortest" in look.utterance else prices
    choose = max if re.search(r"longest|most expensive|highest|slowest", look.utterance) else min
    return click(offers[values.index(choose(values))])


@expert("odd-or-even")
def odd_or_even(look: Look) -> str | None:
    for item in look.items:
        if re.fullmatch(r"-?\d+", item.text) and "display-number" in item.cls:
            place = look.items.index(item)
            chosen = look.items[place - 1] if int(item.text) % 2 else after(look, item, kind="button")
            if chosen is not None and "selected" not in chosen.states:
                return click(chosen)
    return press(look)


@expert("generate-number")
def generate(look: Look) -> str | None:
    shown = first(look, id="display-number")
    number = int(shown.text) if shown is not None and shown.text.isdigit() else None
    word, bound = said(look, r"(less|greater) than (\d+)")
    rules = {"less": lambda n: n < int(bound), "greater": lambda n: n > int(bound), "": lambda n: n % 2 == ("odd" in look.utterance)}
    return press(look, "Submit" if number is not None and rules[word](number) else "Generate")


@expert("phone-book")
def phone_book(look: Look) -> str | None:
    name, what = said(look, r"Find (.*) in the contact book and click on their (.*?)\.")
    if first(look, kind="heading", text=name):
        label = next((item for item in look.items if item.text.lower().startswith(what.split()[0].lower())), None)
        return click(after(look, label, kind="link")) if label else None
    return press(look, ">")


@expert("search-engine")
def search(look: Look) -> str | None:
    word, place = said(look, r'enter "(.*?)" .* the (\d+)')
    box, number = first(look, kind="textbox"), int(place) - 1
    if box is not None and box.value != word:
        return f'type {box.n} "{word}"'
    titles = [item for item in look.items if "search-title" in item.cls]
    if not titles:
        return press(look, "Search")
    page = next((item for item in look.find(kind="link") if item.text == str(number // 3 + 1) and item not in titles), None)
    return click(titles[number % 3] if page is None or "selected" in page.states else page)
