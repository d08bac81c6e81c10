"""Contexts and parsers by name. A new one is a class or function with a decorator, or your own file that a recipe names:

@register_context("summary")
class Summary(Window): …             # made with a PromptMaker; further parameters of __init__ are options (agent.options)

@register_parser("json")
def read_json(response: str, actions: Sequence[str] | None) -> Parsed: …       # or the action as text, empty if there is none
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from turnwise.config.kinds import CONTEXT, PARSER
from turnwise.config.options import Registry


def _load() -> None:
    """Import the files where the built-in ones register themselves."""
    for module in ("context", "parse"):
        importlib.import_module(f"{__package__}.{module}")


contexts: Registry[Callable[..., Any]] = Registry("context", _load, CONTEXT, first=1)
parsers: Registry[Callable[..., Any]] = Registry("parser", _load, PARSER)
register_context = contexts.register
register_parser = parsers.register
