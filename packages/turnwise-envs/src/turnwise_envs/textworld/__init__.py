"""Text games: TextWorld and TextWorld-Express."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import NUMBERED_SPLITS, register
from turnwise_envs.shared.java import needs_java
from turnwise_envs.shared.packages import needs_package


def _splits() -> dict[str, int | None]:
    from turnwise_envs.textworld.env import default_games

    return {} if default_games() is not None else dict.fromkeys(NUMBERED_SPLITS)


register(
    "textworld",
    "turnwise_envs.textworld.env:TextWorldEnv",
    summary=ENVIRONMENTS["textworld"],
    splits=_splits,
    max_turns=100,
    needs=[needs_package("textworld", "textworld")],
)

register(
    "textworld-express",
    "turnwise_envs.textworld.express:TextWorldExpressEnv",
    summary=ENVIRONMENTS["textworld-express"],
    splits={"train": 8000, "valid": 8000, "test": 8000},
    max_turns=100,
    needs=[needs_package("textworld_express", "textworld-express"), needs_java()],
)
