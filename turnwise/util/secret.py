"""Keeps keys and passwords out of recipes, logs, errors and pages.

A recipe is stored with its run, sent to trackers and shown on pages, so a secret in it would spread everywhere. Servers' keys are read from
an environment variable that the recipe names. A recipe that contains a secret itself, as a setting or in an address, is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
NAMES = (
    r"(?:[\w-]*[_-])?(?:(?:api|secret)[_-]?key|(?:api|client)[_-]?secret|password|passwd|"
    r"(?:access|auth|bearer)[_-]?token|authorization)"
)
SECRET_NAME = re.compile(f"(?i){NAMES}")
IN_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@'\"]*@")
IN_QUERY = re.compile(r"(?i)([?&](?:[a-z_-]*(?:key|token|secret|password|signature)|sig)=)[^&\s'\"#]+")
BEARER = re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{6,}")
IN_RECIPE = re.compile(rf'(?im)^(\s*"?(?:{NAMES}|key)"?\s*=\s*)"(?!none")[^"]+"')


def redact(text: str) -> str:
    """A text without the passwords in its addresses, without keys in queries and headers, and without the values of secret settings."""
    text = IN_QUERY.sub(rf"\1{HIDDEN}", IN_ADDRESS.sub(rf"\1{HIDDEN}@", text))
    return IN_RECIPE.sub(rf'\1"{HIDDEN}"', BEARER.sub(rf"\1{HIDDEN}", text))


def redacted(values: Any, name: str = "") -> Any:
    """Plain values with all secrets hidden."""
    if isinstance(values, Mapping):
        return {key: redacted(value, str(key)) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [redacted(value, name) for value in values]
    if isinstance(values, str):
        return HIDDEN if values not in ("", "none") and (SECRET_NAME.fullmatch(name) or name == "key") else redact(values)
    return values


def secrets_in(values: Any, place: str = "") -> Iterator[str]:
    """The dotted keys of a recipe that contain a secret in clear text: settings with such a name, addresses with a password."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from secrets_in(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from secrets_in(value, place)
    elif isinstance(values, str) and values not in ("", "none"):
        name = place.rpartition(".")[2]
        if SECRET_NAME.fullmatch(name) or IN_ADDRESS.search(values):
            yield place
