"""Whether JSON matches a schema, in a bounded number of steps, by jsonschema.

Regular expressions (`pattern`, `patternProperties`) and formats are not checked, nor are lists whose items must differ: a client could send
a schema that keeps a thread busy for ever. References lead into the schema itself alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

STEPS, REFERENCE = 200_000, 20  # of one check, and those that a reference takes
SHOWN = 200  # characters of a message
NOT_CHECKED = ("pattern", "patternProperties", "format", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")


class TooCostly(Exception):
    """A schema whose check takes too many steps."""


def mismatch(text: str, schema: Mapping[str, Any]) -> str:
    """Why a text does not match this schema; empty if it does, or if the schema cannot be read. Raises `TooCostly`."""
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]
    from referencing import Registry

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "the answer is not JSON"
    steps = 0

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def run(validator: Any, keyword: Any, instance: Any, schema: Any) -> Iterator[Any]:
            nonlocal steps
            steps += REFERENCE if name == "$ref" else 1 + sum(len(one) for one in (keyword, instance) if isinstance(one, (list, dict)))
            if steps > STEPS:
                raise TooCostly(f"it takes more than {STEPS} steps")
            yield from check(validator, keyword, instance, schema) or ()

        return run

    checks = {name: counted(name, check) for name, check in Draft202012Validator.VALIDATORS.items() if name not in NOT_CHECKED}
    kind = validators.create({}, checks, type_checker=Draft202012Validator.TYPE_CHECKER)
    try:
        error = next(kind(schema, registry=Registry()).iter_errors(value), None)
    except TooCostly:
        raise
    except Exception:  # a reference that leads nowhere or to itself, an unknown type
        return ""
    return "" if error is None else f"the answer{error.json_path.removeprefix('$')}: {error.message}"[:SHOWN]
