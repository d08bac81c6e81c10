"""For the tests against real packages: `ready("bfcl")` makes the package of an environment importable, or skips with what is missing.

Tests marked `long` run where TURNWISE_ENVS=all, as `make test-envs` does (tests/conftest.py).
"""

from __future__ import annotations

import pytest

from turnwise.envs.install import missing
from turnwise.envs.needs import private_names, use_private
from turnwise.envs.registry import spec


def ready(name: str) -> None:
    """Skip the rest of this file unless the environment can run here."""
    entry = spec(name)
    if left := missing(entry):
        pytest.skip(f"{name}: {'; '.join(left)}", allow_module_level=True)
    use_private(private_names(entry.needs))
