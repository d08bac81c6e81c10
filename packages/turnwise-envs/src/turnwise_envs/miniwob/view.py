"""What an agent reads: the task, and a line for each thing on the page, with numbers for what can be acted on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

COLOURS = {
    "#000000": "black", "#ffffff": "white", "#ff0000": "red", "#008000": "green", "#0000ff": "blue", "#ffff00": "yellow", "#00ffff": "aqua",
    "#ff00ff": "magenta", "#808080": "gray", "#00ff00": "lime", "#800000": "maroon", "#000080": "navy", "#808000": "olive",
    "#800080": "purple", "#c0c0c0": "silver", "#008080": "teal", "#ffc0cb": "pink", "#ffd700": "gold", "#ffa500": "orange",
    "#a52a2a": "brown", "#d3d3d3": "lightgray", "#add8e6": "lightblue", "#ee82ee": "violet", "#4b0082": "indigo", "#40e0d0": "turquoise",
}  # fmt: skip
LINE = 500  # characters of one text
OPTIONS = 30  # shown of a list
HEX = re.compile(r"#[0-9a-f]{6}\b")
QUOTED = re.compile(r'"([^"]{1,80})"')
TYPED = ("textbox", "textarea", "password", "date", "time", "number", "editor")


@dataclass(frozen=True)
class Item:
    """One thing on the page. `n` is its number, 0 for text that is nothing to act on. Position and size are in pixels."""

    n: int
    kind: str
    text: str = ""
    value: str | None = None
    checked: bool | None = None
    options: tuple[str, ...] = ()
    many: bool = False
    colour: str = ""
    corners: int = 0
    place: bool = False
    states: tuple[str, ...] = ()
    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0
    id: str = ""
    cls: str = ""
    tag: str = ""
    scroll: tuple[int, int] | None = None

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height // 2


@dataclass(frozen=True)
class Look:
    """The page as it is now. `whole` is its complete state as text; `clicked` are the numbers of items that were clicked so far,
    `clock` the milliseconds on the page's clock."""

    utterance: str
    items: tuple[Item, ...]
    whole: str = ""
    clicked: frozenset[int] = field(default_factory=frozenset)
    done: bool = False
    reward: float = 0.0
    reason: str = ""
    page: str = ""
    clock: int = 0

    def find(self, **wanted: Any) -> list[Item]:
        """Items with these attributes; a tuple or set lists alternatives."""
        return [item for item in self.items if all(_fits(getattr(item, name), value) for name, value in wanted.items())]


def _fits(own: Any, wanted: Any) -> bool:
    return own in wanted if isinstance(wanted, tuple | set | frozenset) else bool(own == wanted)


def read_look(given: dict[str, Any]) -> Look:
    """The answer of page.js."""
    items = tuple(_item(line) for line in given["lines"])
    task = HEX.sub(lambda found: COLOURS.get(found[0], found[0]), given["utterance"])
    end = bool(given["done"]), float(given["reward"]), str(given["reason"])
    return Look(task, items, given["whole"], frozenset(given["clicked"]), *end, given["page"], int(given["clock"]))


def _item(line: dict[str, Any]) -> Item:
    values = dict(line)
    values["options"] = tuple(values.get("options", ()))
    values["states"] = tuple(values["states"])
    values["scroll"] = tuple(values["scroll"]) if values.get("scroll") else None
    colour = values.get("colour", "")
    values["colour"] = COLOURS.get(colour, colour)
    return Item(**values)


def describe(look: Look, remembers: bool, most: int) -> str:
    """The page as text of at most `most` characters. `remembers`: say what was clicked, on pages that do not show it."""
    lines: list[str] = []
    left = most
    for item in look.items:
        line = line_of(item, remembers and item.n in look.clicked)
        left -= len(line) + 1
        if left < 0:
            lines.append("… (the rest is not shown)")
            break
        lines.append(line)
    return "\n".join(lines)


def line_of(item: Item, clicked: bool = False) -> str:
    """`3 button "Submit"`."""
    if item.n == 0:
        return _cut(item.text)
    parts = [str(item.n), item.kind]
    if item.text:
        parts.append(f'"{_cut(item.text)}"')
    if item.colour:
        parts.append(item.colour)
    if item.corners:
        parts.append(f"{item.corners} corners")
    if item.place:
        parts.append(f"{item.width}x{item.height} at {item.middle[0]},{item.middle[1]}")
    if item.value is not None:
        parts.append(f'= "{_cut(item.value)}"')
    if item.options:
        rest = f" and {len(item.options) - OPTIONS} more" if len(item.options) > OPTIONS else ""
        parts.append(f"of: {', '.join(item.options[:OPTIONS])}{rest}")
    states = [*(["checked"] if item.checked else []), *item.states, *(["clicked"] if clicked else [])]
    if item.scroll:
        states.append(f"scrolled {item.scroll[0]} of {item.scroll[1]}")
    return " ".join(parts) + (f" ({', '.join(states)})" if states else "")


def _cut(text: str) -> str:
    return text if len(text) <= LINE else f"{text[: LINE // 2]} … {text[-LINE // 2 :]}"


def quoted(text: str) -> list[str]:
    """The texts between quotes, each once."""
    return list(dict.fromkeys(QUOTED.findall(text)))


def plausible(look: Look, most: int = 80) -> tuple[str, ...]:
    """Actions that make sense on any page: clicks, quoted words of the task in fields, options, scrolling."""
    words = quoted(look.utterance)[:4]
    found = list(_plausible(look.items, words))
    return tuple(dict.fromkeys(found))[:most]


def _plausible(items: Iterable[Item], words: list[str]) -> Iterable[str]:
    scrolls = False
    for item in items:
        if not item.n:
            continue
        scrolls = scrolls or item.scroll is not None
        if item.kind in TYPED:
            yield from (f'type {item.n} "{word}"' for word in words)
        if item.kind == "select":
            yield from (f'select {item.n} "{option}"' for option in item.options[:12])
        elif item.kind != "area":
            yield f"click {item.n}"
    if scrolls:
        yield from ("scroll down", "scroll up")
