"""Any value as JSON can hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DEEPEST_INFO, LARGEST_INFO = 100, 10**300


def json_value(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """What an environment put into `info`, as far as JSON can hold it: nothing that it puts there may end the run."""
    try:
        if isinstance(value, (Mapping, list, tuple)):
            if id(value) in inside or len(inside) > DEEPEST_INFO:
                return "…"  # it holds itself
            inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return {str(key): json_value(item, inside) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [json_value(item, inside) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return repr(value)  # JSON has no such numbers, and a browser reads none of a file that claims to
        if isinstance(value, int) and abs(value) >= LARGEST_INFO:
            return hex(value)  # beyond what JSON's readers take for a number
        return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
    except Exception as error:  # a key or a value that cannot even be shown
        return f"({type(value).__name__}: {type(error).__name__})"
