"""What experts share: a table of them, and short ways to write actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from turnwise_envs.miniwob.view import Item, Look

Expert = Callable[[Look], str | None]
EXPERTS: dict[str, Expert] = {}


def expert(*kinds: str) -> Callable[[Expert], Expert]:
    """Register a function for these kinds."""

    def add(advise: Expert) -> Expert:
        EXPERTS.update(dict.fromkeys(kinds, advise))
        return advise

    return add


def first(look: Look, **wanted: Any) -> Item | None:
    """The first item with these attributes."""
    return next(iter(look.find(**wanted)), None)


def click(item: Item | None) -> str | None:
    """A click on an item, if there is one."""
    return None if item is None else f"click {item.n}"


def press(look: Look, *names: str) -> str | None:
    """A click on the button with one of these texts, in any case; without names, on Submit."""
    wanted = {name.lower() for name in names or ("submit",)}
    return click(next((item for item in look.items if item.n and item.text.lower() in wanted), None))


def said(look: Look, pattern: str) -> tuple[str, ...]:
    """The groups of a pattern in the task's text; empty texts if it does not match."""
    found = re.search(pattern, look.utterance)
    return tuple(found.groups()) if found else ("",) * re.compile(pattern).groups


def fill(pairs: Iterable[tuple[Item, str]]) -> str | None:
    """Type the first of these texts that is not in its field yet."""
    return next((f'type {item.n} "{text}"' for item, text in pairs if item.value != text), None)


def nth(word: str) -> int:
    """`3rd` → 3."""
    return int(re.sub(r"\D", "", word) or 0)


def after(look: Look, item: Item, **wanted: Any) -> Item | None:
    """The first item below another one."""
    place = look.items.index(item)
    return next((other for other in look.find(**wanted) if look.items.index(other) > place), None)
