"""Names from outside (folders, tasks, ids) as a browser can show them and send them back."""

from __future__ import annotations

from typing import Any


def readable(name: Any) -> str:
    """A name as valid Unicode: bytes that are not UTF-8, which file systems allow, and halves of surrogate pairs are escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def distinct(name: str, taken: Any) -> str:
    """The name or, if it is taken, the name with the first number that makes it unique."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
