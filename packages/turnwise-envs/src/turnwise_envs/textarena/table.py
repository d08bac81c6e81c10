"""The games of the package, as they were found when each was tried. Reading the table imports nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError, unknown_name

TABLE = Path(__file__).with_name("games.json")


@dataclass(frozen=True)
class Game:
    """One family of games. `ids` are its variants in the package, the usual one first. `players`: the numbers of players that it takes.
    `talk`: players read each other's words, not only the board. `attributes` of the package's object are part of the state, in addition to
    what the package itself calls so. `turns` is the most that one player needs. `needs` says what has to be installed, or why it does not
    run at all (`runs` is false)."""

    family: str
    ids: tuple[str, ...]
    players: tuple[int, ...]
    talk: bool = False
    attributes: tuple[str, ...] = ()
    turns: int = 50
    runs: bool = True
    needs: str = ""


@lru_cache(maxsize=1)
def games() -> dict[str, Game]:
    """All games by family."""
    found: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))["games"]
    return {name: Game(name, **_fields(own)) for name, own in found.items()}


def _fields(own: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}


def find(name: str) -> tuple[Game, str]:
    """The game and the id of its variant, by a family (`Nim`) or an id (`Nim-v0-large`)."""
    short = name.removesuffix("-raw").removesuffix("-train")
    for game in games().values():
        if short == game.family or short in game.ids:
            if not game.runs:
                raise TurnwiseError(f"textarena: {name} does not run. It needs {game.needs}")
            return game, game.ids[0] if short == game.family else short
    raise unknown_name("game of textarena", name, [*games(), *(one for game in games().values() for one in game.ids)])
