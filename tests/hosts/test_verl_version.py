"""Another release of verl is one clear message. This needs no verl."""

from __future__ import annotations

import runpy
from importlib import metadata
from pathlib import Path

import pytest

import turnwise.hosts.versions as versions
from turnwise.util.errors import TurnwiseError

HOST = Path(versions.__file__).parent / "verl.py"


def test_another_release_of_verl_is_refused_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "0.8.0")
    with pytest.raises(TurnwiseError, match=r"written for verl 0\.9\.1, and 0\.8\.0 is installed: pip install 'verl==0\.9\.1\.\*'"):
        runpy.run_path(str(HOST))
