"""Another version of TRL is one clear message. Needs no TRL."""

from __future__ import annotations

import sys
from importlib import import_module, metadata

import pytest

from turnwise import TurnwiseError


def test_another_version_of_trl_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "turnwise.hosts.trl", raising=False)
    monkeypatch.setattr(metadata, "version", lambda package: {"trl": "1.15.2"}[package])
    with pytest.raises(TurnwiseError, match=r"written for trl 1\.16, and 1\.15\.2 is installed: pip install 'trl==1\.16\.\*'"):
        import_module("turnwise.hosts.trl")
