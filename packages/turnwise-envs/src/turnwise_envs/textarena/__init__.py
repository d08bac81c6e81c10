"""The games of textarena."""

from __future__ import annotations

from turnwise.envs.registry import needs_package, register

register(
    "textarena",
    "turnwise.envs.textarena.env:TextArenaEnv",
    summary="the games of textarena, alone or against others: a random player, an expert, a model, or the policy itself (self-play)",
    splits={"train": None, "valid": None, "test": None},
    needs=[needs_package("textarena", "textarena")],
)
