"""Sliders, spinners, calendars and colours."""

from __future__ import annotations

import re

from turnwise_envs.miniwob.experts.base import after, click, expert, fill, first, press, said
from turnwise_envs.miniwob.view import Item, Look

MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
]  # fmt: skip


def slide(missing: int) -> str:
    """The key that brings a slider of twenty steps nearer: a fifth of them, or one."""
    if abs(missing) >= 4:
        return "press pageup" if missing > 0 else "press pagedown"
    return "press right" if missing > 0 else "press left"


def _one(handle: Item, missing: int) -> str:
    if "focused" not in handle.states:
        return f"click {handle.n}"
    return "press right" if missing > 0 else "press left"


@expert("use-slider")
def slider(look: Look) -> str | None:
    (wanted,) = said(look, r"Select (-?\d+) with")
    handle, shown = first(look, kind="handle"), next((item for item in look.items if re.fullmatch(r"-?\d+", item.text)), None)
    if handle is None or shown is None:
        return None
    return press(look) if int(shown.text) == int(wanted) else _one(handle, int(wanted) - int(shown.text))


@expert("use-slider-2")
def sliders(look: Look) -> str | None:
    (values,) = said(look, r"\[(.*?)\]")
    for handle, wanted in zip(look.find(kind="handle"), values.split(","), strict=False):
        shown = after(look, handle, kind="text")
        if shown is not None and int(shown.text) != int(wanted):
            return slide(int(wanted) - int(shown.text)) if "focused" in handle.states else click(handle)
    return press(look)


@expert("use-spinner")
def spinner(look: Look) -> str | None:
    (wanted,) = said(look, r"Select (-?\d+) with")
    shown = int(look.find(kind="textbox")[0].value or 0)
    return press(look) if shown == int(wanted) else press(look, "spinner-up" if shown < int(wanted) else "spinner-down")


@expert("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
def date(look: Look) -> str | None:
    return calendar(look, first(look, kind="textbox"))


def calendar(look: Look, box: Item | None) -> str | None:
    """Choose the date of the task in the calendar of a field; submit when it is there."""
    month, day, year = said(look, r"(\d+)/(\d+)/(\d+)")
    if box is None or box.value == f"{month}/{day}/{year}":
        return press(look)
    shown = [item for item in look.items if item.text in MONTHS]
    if not shown:
        return click(box)
    written = next((int(item.text) for item in look.items if re.fullmatch(r"20\d\d", item.text)), int(year))
    ahead = (int(year) - written) * 12 + int(month) - 1 - MONTHS.index(shown[0].text)
    if ahead:
        return press(look, "Next" if ahead > 0 else "Prev")
    return click(next((item for item in look.find(kind="link") if item.text == str(int(day))), None))


COLOURS = {
    "black": "000000", "white": "FFFFFF", "aqua": "00FFFF", "blue": "0000FF", "gray": "808080", "green": "008000", "lime": "00FF00",
    "maroon": "800000", "navy": "000080", "olive": "808000", "purple": "800080", "red": "FF0000", "silver": "C0C0C0", "teal": "008080",
    "yellow": "FFFF00", "pink": "FFC0CB", "magenta": "FF00FF", "gold": "FFD700", "orange": "FFA500", "cyan": "00FFFF",
}  # fmt: skip


@expert("use-colorwheel")
def colour(look: Look) -> str | None:
    (name,) = said(look, r"Select (\w+) with")
    box = look.find(kind="textbox")[0]
    return fill([(box, COLOURS[name])]) or ("click 150 20" if look.find(kind="canvas") else press(look))
