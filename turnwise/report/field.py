"""The map of the field in docs/methods/README.md: one row per method, from what the methods say of themselves.

python -m turnwise.report.field docs/methods/README.md          # write the table between the two marks of the page
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config.options import Entry
from turnwise.setup.catalogue import entries, needs_of, settings_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
HEAD = "| method | what it changes | needs | costs | evidence |\n|---|---|---|---|---|\n"
NEEDS: Mapping[str, str] = {"group.peers": "two attempts per task", "env.snapshot": "an environment with `snapshot` and `restore`"}


def table() -> str:
    """The rows of all methods that come with Turnwise, as Markdown."""
    own = [entry for entry in entries("method") if entry.function.__module__.startswith("turnwise.")]
    return HEAD + "".join(f"| {' | '.join(_row(entry))} |\n" for entry in own)


def _row(entry: Entry[Any]) -> list[str]:
    notes = [entry.notes.get(word, "") for word in ("changes", "costs", "evidence")]
    return [f"[`{entry.name}`]({entry.name}.md)", notes[0], asked(entry) or "nothing", *notes[1:]]


def asked(entry: Entry[Any]) -> str:
    """What a method needs and does not bring itself: data of tasks, abilities of the environment, models, several attempts."""
    brought = {".".join(["model", *key.split(".")[1:2]]) for key in settings_of(entry) if key.startswith("models.")}
    found = {need for needs in needs_of(entry).values() for need in needs} - brought - {"model.policy", "model.reference"}
    words = [NEEDS.get(need) or _words(need) for need in sorted(found)]
    return ", ".join(word for word in words if word)


def _words(need: str) -> str:
    level, _, name = need.partition(".")
    if name.endswith("?"):  # used where it is there
        return ""
    words = {"task": f"tasks with `{name}`", "env": f"an environment with `{name}`", "model": f"a model `[models.{name}]`"}
    return words.get(level, "")


def rewritten(text: str) -> str:
    """A page with the table of today between its marks."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise TurnwiseError(f"the page has no place for the table: it goes between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    write_text_atomically(page, rewritten(page.read_text(encoding="utf-8")))
