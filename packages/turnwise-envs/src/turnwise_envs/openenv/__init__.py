"""Environments behind an OpenEnv server."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import Need, register
from turnwise_envs.shared.packages import needs_package


def _url() -> bool:
    from turnwise_envs.openenv.env import default_url

    return bool(default_url())


register(
    "openenv",
    "turnwise_envs.openenv.env:OpenEnvClient",
    summary=ENVIRONMENTS["openenv"],
    needs=[
        needs_package("websockets", "openenv"),
        Need("OPENENV_URL", _url, "start a server and set OPENENV_URL, or the option url: see docs/adapters.md"),
    ],
)
