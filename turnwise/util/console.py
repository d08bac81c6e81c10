"""Rich's console for texts that somebody else wrote: every piece of text is made plain on its way out, wherever it stands (a cell, a title,
a line of a live display), and nothing is read as markup, as an emoji's name or as something to colour. Who wants a style says so with
rich's `Text`. The only place where Turnwise makes a console."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from turnwise.util.printable import plain


class Console(rich.console.Console):
    """As rich's, but no text acts. `wide` is the width of a log or a pipe, which has none of its own."""

    def __init__(self, *, wide: int | None = None, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)
        if wide is not None and not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = wide

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich's segments; those that steer the terminal are rich's own, and text becomes plain."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
