"""A simple rule for all kinds of tasks. It sees no more than an agent does, and shows what a page gives away."""

from __future__ import annotations

import re

from turnwise_envs.miniwob.view import TYPED, Item, Look, quoted

SUBMITS = ("submit", "search", "login", "ok", "go!", "order!", "agree", "buy")


def simple_rule(look: Look) -> str:
    """Fill empty fields with the quoted words in turn, choose what the task names, then press the button that submits."""
    words = quoted(look.utterance)
    fields = [item for item in look.items if item.kind in TYPED]
    for item, word in zip(fields, words if len(words) > 1 else words * len(fields), strict=False):
        if not item.value:
            return f'type {item.n} "{word}"'
    for item in look.items:
        if item.kind in ("checkbox", "radio") and not item.checked and _named(item.text, look.utterance):
            return f"click {item.n}"
        options = [option for option in item.options if _named(option, look.utterance)]
        if item.kind == "select" and options and item.value not in options:
            return f'select {item.n} "{options[0]}"'
    chosen = _best(look, words)
    return f"click {chosen.n}" if chosen is not None else "scroll down"


def _best(look: Look, words: list[str]) -> Item | None:
    """What to click: a quoted text, something that the task names, a button that submits, any button, anything."""
    things = [item for item in look.items if item.n and item.kind not in (*TYPED, "checkbox", "radio", "select", "area")]
    submits = [item for item in things if item.text.lower() in SUBMITS]
    filled = any(item.value or item.checked for item in look.items)
    named = [item for item in things if item not in submits and _named(item.text or item.colour, look.utterance)]
    order = (
        submits if filled else [],
        [item for item in things if item.text in words],
        sorted(named, key=lambda item: -len(item.text)),
        submits,
        [item for item in things if item.kind == "button"],
        things,
    )
    return next((found[0] for found in order if found), None)


def _named(text: str, utterance: str) -> bool:
    return bool(text) and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", utterance, re.IGNORECASE) is not None
