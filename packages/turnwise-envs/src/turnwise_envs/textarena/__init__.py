"""The games of textarena."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import register
from turnwise_envs.shared.packages import needs_package

register(
    "textarena",
    "turnwise_envs.textarena.env:TextArenaEnv",
    summary=ENVIRONMENTS["textarena"],
    splits={"train": None, "valid": None, "test": None},
    needs=[needs_package("textarena", "textarena")],
)
