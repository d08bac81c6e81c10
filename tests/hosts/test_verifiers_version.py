"""Without the right version of verifiers, one message says what to install; no host is needed for that."""

from __future__ import annotations

from importlib import metadata

import pytest

from turnwise.hosts import verifiers
from turnwise.util.errors import TurnwiseError


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "0.5.0")
    with pytest.raises(TurnwiseError, match=r"written for verifiers 0\.4, and 0\.5\.0 is installed: pip install 'verifiers==0\.4\.\*'"):
        verifiers.give([], "gigpo")
    with pytest.raises(TurnwiseError, match=r"0\.5\.0 is installed"):
        verifiers.give_in_file("traces.jsonl", "credited.jsonl", "gigpo")
