"""Without the right versions of Tinker and its cookbook, one message says what to install; no host is needed for that."""

from __future__ import annotations

from importlib import metadata

import pytest

from turnwise.hosts.tinker import assemble_with
from turnwise.util.errors import TurnwiseError


@pytest.mark.parametrize(("package", "version"), [("tinker", "0.36"), ("tinker-cookbook", "0.5.8")])
def test_another_version_is_refused(package: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"tinker": "0.36.0", "tinker-cookbook": "0.5.8", package: "0.99.0"}
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    with pytest.raises(
        TurnwiseError, match=rf"written for {package} {version}, and 0\.99\.0 is installed: pip install '{package}=={version}"
    ):
        assemble_with("gigpo")
