"""Environments of the package verifiers."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import Need, register
from turnwise_envs.shared.packages import needs_package

register(
    "verifiers",
    "turnwise_envs.verifiers.env:VerifiersEnv",
    summary=ENVIRONMENTS["verifiers"],
    needs=[
        needs_package("verifiers", "verifiers"),
        Need("an environment", lambda: False, "the option environment: see docs/adapters.md"),
    ],
)
