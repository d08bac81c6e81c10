"""A parser for models that have learned nothing: whatever they say is a call of some tool of the shop."""

from __future__ import annotations

import json
from collections.abc import Sequence

CALLS = (("items", {}), ("price", {"item": "milk"}), ("stock", {"item": "pear"}), ("answer", {"answer": "8"}))


def any_call(response: str, actions: Sequence[str] | None) -> str:
    name, arguments = CALLS[len(response) % len(CALLS)]
    return json.dumps({"name": name, "arguments": arguments})
