"""Without the right version of prime-rl, one message says so; no host is needed for that."""

from __future__ import annotations

from importlib import metadata

import pytest

from turnwise.hosts import prime_rl
from turnwise.util.errors import TurnwiseError


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "0.9.0")
    with pytest.raises(TurnwiseError, match=r"written for prime-rl 0\.8, and 0\.9\.0 is installed: git checkout 559b447"):
        prime_rl.install("gigpo")
