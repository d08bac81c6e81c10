"""Stored inputs and outputs of the authors' own functions (tests/golden), which were executed in their repositories' code."""

from __future__ import annotations

import json
from typing import Any

from conftest import ROOT


def golden(name: str, part: str = "cases") -> list[dict[str, Any]]:
    """The cases of one file; each says what went in and what came out."""
    found: list[dict[str, Any]] = json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())[part]
    return found
