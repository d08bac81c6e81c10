"""A rich console for untrusted text. All output is sanitised, wherever it appears (a cell, a title, a line of a live display), and nothing
is interpreted as markup, as an emoji name or for highlighting. Callers that want a style use rich's `Text`. Turnwise creates consoles only
here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from turnwise.util.printable import SHOWN, printable


class Console(rich.console.Console):
    """Like rich's console, but text cannot control the terminal. `wide` is the width for a log or a pipe, which has no width."""

    def __init__(self, *, wide: int | None = None, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)
        if wide is not None and not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = wide

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich's segments: control segments come from rich itself, and text is sanitised."""
        SHOWN.set()
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
