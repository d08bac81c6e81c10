"""The tasks of MiniHack and NetHack by name: which can be used, what each is about, and how one is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from turnwise.config.addons import DISTRIBUTION
from turnwise.util.errors import MissingExtra, TurnwiseError, unknown_name
from turnwise_envs.shared.global_seeds import seeded

KEYS = ("glyphs", "chars", "blstats", "message", "screen_descriptions", "inv_strs", "inv_letters")
STAIRS = "reach the staircase down"
GOALS = {  # by the beginning of a name; what is not here wants the stairs
    "Eat": "find the apple and eat it",
    "Pray": "go to the altar and pray there",
    "PutOn": "find the amulet and put it on",
    "Read": "find the scroll and read it",
    "Sink": "go to the sink and quaff from it",
    "Wear": "find the robe and wear it",
    "Wield": "find the dagger and wield it",
    "Zap": "find the wand and zap it",
    "Freeze-": "use what you find or have (a wand of cold, a frost horn or a scroll) to cast cold",
    "Levitate-": "use what you find or have (boots, a ring or a potion) to levitate",
    "LavaCross-": "cross the lava and reach the staircase down",
    "WoD-": "kill the minotaur with the wand of death",
    "Memento-": "kill the grid bug at the end of one of the ways. The animal behind the bars tells which way; the others end the attempt",
    "ExploreMaze-": "eat the apples of the maze, then reach the staircase down",
    "Sokoban": "push the boulders into the pits and holes and reach the stairs",
    "Quest-": "cross the lava or river, kill what stands in the way, and reach the staircase down",
    "NetHackScore": "get a high score",
    "NetHackStaircasePet": "reach a staircase down with your pet next to you",
    "NetHackStaircase": "reach a staircase down",
    "NetHackOracle": "find the Oracle and stand next to it",
    "NetHackGold": "collect gold",
    "NetHackEat": "eat as often as you can",
    "NetHackScout": "explore as much of the dungeon as you can",
    "NetHack-": "get a high score",
    "NetHack": "get a high score",
}
EASY = ("Room-Random-5x5", "Room-Dark-5x5", "Room-Monster-5x5", "Room-Trap-5x5", "Room-Random-15x15", "Corridor-R2", "MazeWalk-Mapped-9x9")
SKILLS = (
    "Eat",
    "Pray",
    "PutOn",
    "Read",
    "Sink",
    "Wear",
    "Wield",
    "Zap",
    "Freeze-",
    "Levitate-",
    "LavaCross-",
    "WoD-",
    "Quest-",
    *("ClosedDoor", "LockedDoor"),
)
UNUSABLE = {
    "NetHackChallenge": "it does not let anybody set its seed, so an attempt cannot be repeated",
    "Boxoban-": "its levels are not part of the package. The environment boxoban plays them",
    "Navigation-Custom": "it needs a level description",
    "Skill-Custom": "it needs a level description",
    "LavaCrossing": "minihack 1.0 cannot make it with minigrid 3",
    "SimpleCrossing": "minihack 1.0 cannot make it with minigrid 3",
}
HIDDEN = {"SHELL", "SAVE", "QUIT", "OPTIONS", "HISTORY", "REDRAW", "VERSION", "VERSIONSHORT", "EXTCMD", "EXTLIST", "WHATDOES"}
WORDS = {
    "N": "north",
    "E": "east",
    "S": "south",
    "W": "west",
    "NE": "northeast",
    "SE": "southeast",
    "SW": "southwest",
    "NW": "northwest",
    "PICKUP": "pick up",
    "PUTON": "put on",
    "TAKEOFF": "take off",
    "TAKEOFFALL": "take off all",
    "ESC": "escape",
    "EXTCMD": "extended",
    "RUSH2": "rush on",
    "MOVEFAR": "move far",
    "TWOWEAPON": "two weapons",
    "DROPTYPE": "drop several",
    "UP": "up",
    "DOWN": "down",
}


def known(nethack: bool) -> dict[str, str]:
    """Name → id of all tasks that can be used."""
    load(nethack)
    registry = import_module("gymnasium.envs.registration").registry
    found = {}
    for spec in registry.values():
        name = spec.name.removeprefix("MiniHack-")
        if spec.name.startswith("NetHack" if nethack else "MiniHack-") and unusable(name) is None:
            found[name] = spec.id
    return dict(sorted(found.items()))


def unusable(name: str) -> str | None:
    """Why a task is left out; None if it is not."""
    return next((reason for prefix, reason in UNUSABLE.items() if name.startswith(prefix)), None)


def sets(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The named sets among these tasks."""
    skills = tuple(name for name in names if name.startswith(SKILLS))
    walks = tuple(name for name in names if name not in skills)
    return {"easy": tuple(name for name in EASY if name in names), "navigation": walks, "skills": skills, "all": tuple(names)}


def chosen(levels: Sequence[str] | str, nethack: bool) -> tuple[str, ...]:
    """The tasks that an option names: a task, a set (of MiniHack), or a list of both."""
    names = known(nethack)
    groups = {"all": tuple(names)} if nethack else sets(tuple(names))
    found: list[str] = []
    for given in [levels] if isinstance(levels, str) else levels:
        stem, _, version = str(given).removeprefix("MiniHack-").rpartition("-v")
        name = stem if stem and version.isdigit() else str(given).removeprefix("MiniHack-")
        if (reason := unusable(name)) is not None:
            raise TurnwiseError(f"minihack: the task {name} is left out: {reason}")
        if name not in groups and name not in names:
            raise unknown_name("task of NetHack" if nethack else "task of MiniHack or set of tasks", str(given), (*groups, *names))
        found += groups.get(name, (name,))
    if not found:
        raise TurnwiseError(f"minihack: levels is empty. Name tasks, or a set: {', '.join(groups)}")
    return tuple(dict.fromkeys(found))


def goal(name: str) -> str:
    """What a task wants."""
    return next((text for prefix, text in GOALS.items() if name.startswith(prefix)), STAIRS)


def opened(gym_id: str, kwargs: Mapping[str, Any] | None = None) -> Any:
    """A game of the package, without wrappers. The phase of the moon comes from the seed, not from the calendar."""
    gymnasium = import_module("gymnasium")
    with seeded(0):
        game = gymnasium.make(gym_id, disable_env_checker=True, observation_keys=KEYS, fix_moon_phase=True, **(kwargs or {}))
    return game.unwrapped


def seed_game(game: Any, seed: int) -> None:
    """Fix everything that the next reset draws. Levels that are made by MiniGrid get the seed there."""
    base = import_module("nle.env.base").NLE
    inner = getattr(game, "minigrid_env", None)
    if inner is not None:
        game.minigrid_env = _Seeded(getattr(inner, "inner", inner), seed)
    base.seed(game, seed, seed, False)


class _Seeded:
    """A MiniGrid environment whose resets are all the same."""

    def __init__(self, inner: Any, seed: int):
        self.inner, self._seed = inner, seed

    def reset(self) -> Any:
        return self.inner.reset(seed=self._seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def action_names(actions: Sequence[Any]) -> dict[str, int]:
    """Word → index of the task's actions. Those that leave the game, and those that only show help, are left out."""
    found: dict[str, int] = {}
    for index, action in enumerate(actions):
        if action.name not in HIDDEN:
            found.setdefault(_word(action), index)
    return found


def all_names(actions: Sequence[Any]) -> tuple[str, ...]:
    """A different name for each action, also for those that are usually left out."""
    words = [_word(action) for action in actions]
    return tuple(word if words.index(word) == index else f"{word} ({int(actions[index])})" for index, word in enumerate(words))


def _word(action: Any) -> str:
    word = WORDS.get(action.name, action.name.lower().replace("_", " "))
    return f"far {word}" if type(action).__name__ == "CompassDirectionLonger" else word


@cache
def load(nethack: bool) -> Any:
    """The packages."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    for package in ("nle",) if nethack else ("nle", "minihack"):
        try:
            with seeded(0):
                found = import_module(package)
        except ModuleNotFoundError as error:
            if error.name not in ("nle", "minihack", "pkg_resources"):  # the last one is missing in new versions of setuptools
                raise
            raise MissingExtra(f"the environment {'nethack' if nethack else 'minihack'}", "minihack", DISTRIBUTION) from None
    return found
