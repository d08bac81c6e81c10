"""Optional packages of the environments: each is an extra of this distribution."""

from __future__ import annotations

from typing import Any

from turnwise.config.addons import DISTRIBUTION
from turnwise.envs import needs
from turnwise.envs.needs import Need


def needs_package(module: str, extra: str) -> Need:
    """The requirement of an optional package, an extra of `turnwise-envs`."""
    return needs.needs_package(module, extra, DISTRIBUTION)


def load(package: str, feature: str, extra: str) -> Any:
    """The package, or the error that names the extra. A package that is there but fails to load keeps its own error."""
    return needs.load(package, feature, extra, DISTRIBUTION)
