"""Tasks with many things of a kind: check boxes, options, posts, dishes, trees."""

from __future__ import annotations

import re

from turnwise_envs.miniwob.experts.base import after, click, expert, fill, first, nth, press, said
from turnwise_envs.miniwob.experts.widgets import slide
from turnwise_envs.miniwob.view import Item, Look, quoted


def _named(look: Look) -> list[str]:
    (names,) = said(look, r"Select (.*?)(?: from the scroll list)? and click Submit")
    return [name.strip() for name in names.split(",")] if names != "nothing" else []


@expert("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def check_boxes(look: Look) -> str | None:
    names = _named(look)
    wrong = [item for item in look.find(kind="checkbox") if bool(item.checked) != (item.text in names)]
    return click(wrong[0]) if wrong else press(look)


@expert("click-option")
def option(look: Look) -> str | None:
    found = first(look, kind="radio", text=_named(look)[0])
    return press(look) if found is None or found.checked else click(found)


@expert("choose-list")
def choose(look: Look) -> str | None:
    (name,) = said(look, r"Select (.*?) from the list")
    found = first(look, kind="select")
    return press(look) if found is None or found.value == name else f'select {found.n} "{name}"'


@expert("click-scroll-list")
def scroll_list(look: Look) -> str | None:
    found, names = first(look, kind="select"), _named(look)
    if found is None:
        return None
    chosen = (found.value or "").split(", ") if found.value else []
    missing = [name for name in names if name not in chosen]
    return f'select {found.n} "{missing[0]}"' if missing else press(look)


BUTTONS = {
    "Share via DM": "share", "Copy link to Tweet": "copy", "Embed Tweet": "embed", "Mute": "menu-user", "Block": "block-user",
    "Report": "report", "Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share",
}  # fmt: skip


def _post(look: Look, name: Item) -> list[Item]:
    """What belongs to a post: from its user's name to the next one's."""
    place = look.items.index(name)
    later = [item for item in look.items[place + 1 :] if "username" in item.cls]
    return list(look.items[place : look.items.index(later[0]) if later else None])


@expert("social-media")
def post(look: Look) -> str | None:
    user, button = said(look, r'user (@\S+), click on the "(.*?)" button')
    name = first(look, text=user)
    if name is None:
        return None
    own = _post(look, name)
    found = next((item for item in own if item.cls.split()[:1] == [BUTTONS[button]]), None)
    return click(found or next((item for item in own if "more" in item.cls.split()), None))


@expert("social-media-all", "social-media-some")
def posts(look: Look) -> str | None:
    button, amount, user = said(look, r'Click the "(.*?)" button on (\w+) posts? by (@\S+)')
    names = [item for item in look.items if "username" in item.cls and item.text == user]
    found = [item for name in names for item in _post(look, name) if item.cls.split()[:1] == [BUTTONS[button]]]
    wanted = len(found) if amount == "all" else int(amount)
    done = [item for item in found if item.n in look.clicked]
    return press(look) if len(done) >= wanted else click(next(item for item in found if item not in done))


@expert("order-food")
def food(look: Look) -> str | None:
    (names,) = said(look, r"each item: (.*)")
    number, kind = said(look, r"Order (\d+) items? that (?:are|is) (.*?)\.?$")
    if names:
        wanted = {name.strip(): 1 for name in names.split(",")}
    else:
        dishes = [item for item in look.items if "item-name" in item.cls]
        fits = [dish for dish in dishes if any(item.text == kind for item in _dish(look, dish))]
        wanted = {fits[0].text: int(number)} if fits else {}
    for name, amount in wanted.items():
        dish = first(look, text=name)
        plus = after(look, dish, text="+") if dish is not None else None
        if dish is None or plus is None:
            return None
        shown = look.items[look.items.index(plus) - 1].text
        if (int(shown) if shown.isdigit() else 0) < amount:
            return click(plus)
    return press(look, "Order!")


def _dish(look: Look, dish: Item) -> list[Item]:
    place, own = look.items.index(dish), []
    for item in look.items[place + 1 :]:
        if "item-name" in item.cls:
            break
        own.append(item)
    return own


@expert("use-autocomplete", "use-autocomplete-nodelay")
def autocomplete(look: Look) -> str | None:
    words = quoted(look.utterance)
    box = first(look, kind="textbox")
    start, end = words[0], words[1] if len(words) > 1 else ""
    if box is None:
        return None
    if (box.value or "").startswith(start) and (box.value or "").endswith(end) and len(box.value or "") > len(start):
        return press(look)
    offers = [item for item in look.items if "ui-menu-item-wrapper" in item.cls and item.text.startswith(start) and item.text.endswith(end)]
    return click(offers[0]) if offers else f'type {box.n} "{start}"'


@expert("navigate-tree")
def tree(look: Look) -> str | None:
    found = first(look, kind="text", text=quoted(look.utterance)[0])
    closed = next((item for item in look.items if "expandable-hitarea" in item.cls), None)
    return click(found or closed)


@expert("stock-market")
def stock(look: Look) -> str | None:
    (bound,) = said(look, r"less than \$(\d+(?:\.\d+)?)")
    price = next((item for item in look.items if re.fullmatch(r"\$[\d.]+", item.text)), None)
    low = price is not None and float(price.text.strip("$")) < float(bound)
    return press(look, "Buy") if low else "wait"


@expert("sign-agreement")
def agreement(look: Look) -> str | None:
    name, button = said(look, r'the name "(.*?)" then press "(.*?)"')
    box, area = first(look, kind="textbox"), first(look, kind="textarea")
    if not name or box is None or area is None:
        return press(look, "Cancel" if "cancel" in look.utterance.lower() else "Agree")
    if "disabled" in box.states:
        return f"scroll {area.n} down"
    return fill([(box, name)]) or press(look, button)


@expert("find-greatest")
def greatest(look: Look) -> str | None:
    cards = [item for item in look.items if re.search(r"\bcard\b", item.cls)]
    numbers = [int(found) for found in re.findall(r"<DIV class=card(?: hidden)? data-index=\d+ <SPAN class=card-value (\d+)", look.whole)]
    if len(cards) != len(numbers):
        return None
    best = cards[numbers.index(max(numbers))]
    return click(best) if "hidden" in best.cls else press(look)


@expert("tic-tac-toe")
def tic_tac_toe(look: Look) -> str | None:
    cells = [item for item in look.items if re.fullmatch(r"ttt-\d", item.id)]
    board = ["X" if re.search(r"mark-x", item.cls) else "O" if re.search(r"mark-o", item.cls) else "" for item in cells]
    if len(cells) != 9:
        return None
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    for mark in ("X", "O"):
        for line in lines:
            own = [board[place] for place in line]
            if own.count(mark) == 2 and "" in own:
                return click(cells[line[own.index("")]])
    return click(next((cells[place] for place in (4, 0, 2, 6, 8, 1, 3, 5, 7) if not board[place]), None))


@expert("form-sequence")
def slider_and_box(look: Look) -> str | None:
    value, place = said(look, r"Select (-?\d+) with the slider, click the (\w+) checkbox")
    shown, handle = first(look, id="val"), first(look, kind="handle")
    if shown is None or handle is None:
        return None
    if int(shown.text) != int(value):
        if "focused" not in handle.states:
            return click(handle)
        return slide(int(value) - int(shown.text))
    boxes = look.find(kind="checkbox")
    wrong = [box for number, box in enumerate(boxes, 1) if bool(box.checked) != (number == nth(place))]
    return click(wrong[0]) if wrong else press(look)
