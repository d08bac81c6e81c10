"""The levels of BabyAI by name, and the sets of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from turnwise.config.addons import DISTRIBUTION
from turnwise.util.errors import MissingExtra, TurnwiseError, unknown_name

EASY = (
    *("GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObj", "GoToObjS4", "GoToObjS6", "GoToRedBlueBall", "GoToDoor"),
    *("GoToLocal", "GoToLocalS5N2", "GoToLocalS6N2", "GoToLocalS6N3", "GoToLocalS6N4", "GoToLocalS7N4", "GoToLocalS7N5"),
    *("GoToLocalS8N2", "GoToLocalS8N3", "GoToLocalS8N4", "GoToLocalS8N5", "GoToLocalS8N6", "GoToLocalS8N7", "GoToObjMazeS4R2"),
    *("OpenRedDoor", "OpenDoor", "OpenDoorDebug", "OpenDoorColor", "OpenDoorLoc", "ActionObjDoor"),
    *("PickupDist", "PickupDistDebug", "PickupLoc", "OneRoomS8", "OneRoomS12"),
)
MEDIUM = (
    *("PutNextLocal", "PutNextLocalS5N3", "PutNextLocalS6N4", "PutNextS4N1", "PutNextS5N1", "PutNextS5N2", "PutNextS6N3"),
    *("PutNextS7N4", "PutNextS5N2Carrying", "PutNextS6N3Carrying", "PutNextS7N4Carrying", "MoveTwoAcrossS5N2", "MoveTwoAcrossS8N9"),
    *("OpenTwoDoors", "OpenRedBlueDoors", "OpenRedBlueDoorsDebug", "OpenDoorsOrderN2", "OpenDoorsOrderN4", "GoToObjDoor"),
    *("UnlockLocal", "UnlockLocalDist", "KeyInBox", "UnlockPickup", "UnlockPickupDist", "BlockedUnlockPickup", "UnlockToUnlock"),
    *("FindObjS5", "FindObjS6", "PickupAbove", "KeyCorridorS3R1", "KeyCorridorS3R2", "GoToSeqS5R2"),
    *("GoToObjMazeS4", "GoToObjMazeS5", "GoToObjMazeS6", "OneRoomS16", "OneRoomS20", "MiniBossLevel"),
)
HARD = (
    *("GoTo", "GoToOpen", "GoToObjMaze", "GoToObjMazeOpen", "GoToObjMazeS7", "GoToImpUnlock", "GoToSeq", "Open", "Pickup"),
    *("UnblockPickup", "Unlock", "KeyCorridor", "KeyCorridorS3R3", "KeyCorridorS4R3", "KeyCorridorS5R3", "KeyCorridorS6R3"),
    *("FindObjS7", "Synth", "SynthLoc", "SynthS5R2", "SynthSeq", "BossLevel", "BossLevelNoUnlock"),
)
SETS: Mapping[str, tuple[str, ...]] = {"easy": EASY, "medium": MEDIUM, "hard": HARD, "all": (*EASY, *MEDIUM, *HARD)}
TURNS = {"easy": 64, "medium": 128, "hard": 256}  # enough for the package's bot
_STRICT = (
    "most of its missions cannot be won: opening the first of two doors counts as opening a wrong second one. "
    "Use {} instead, which is the same without that check"
)
UNUSABLE = {name + "Debug": _STRICT.format(name) for name in ("OpenDoorsOrderN2", "OpenDoorsOrderN4")}


def chosen(levels: Sequence[str] | str) -> tuple[str, ...]:
    """The levels that an option names: a level, a set, or a list of both. `BabyAI-GoTo-v0` is the same as `GoTo`."""
    names: list[str] = []
    for name in [levels] if isinstance(levels, str) else levels:
        short = _short(str(name))
        if short in UNUSABLE:
            raise TurnwiseError(f"babyai: the level {short} is left out: {UNUSABLE[short]}")
        if short not in SETS and short not in SETS["all"]:
            raise unknown_name("BabyAI level or set of levels", str(name), (*SETS, *SETS["all"]))
        names += SETS.get(short, (short,))
    if not names:
        raise TurnwiseError(f"babyai: levels is empty. Name levels, or a set: {', '.join(SETS)}")
    return tuple(dict.fromkeys(names))


def turns(names: Sequence[str]) -> int:
    """The limit of turns for these levels."""
    return max(TURNS[level] for level in TURNS if set(names) & set(SETS[level]))


def make(name: str) -> Any:
    """A new level of the package. It is not reset yet."""
    factories = _factories()
    if name not in factories:
        raise TurnwiseError(f"babyai: this version of minigrid has no level {name}. Install minigrid 3.0 or newer")
    factory, options = factories[name]
    return factory(**options)


@cache
def _factories() -> Mapping[str, tuple[Any, Mapping[str, Any]]]:
    """Name → the class of the package and its arguments."""
    load()
    registration = import_module("gymnasium.envs.registration")
    known: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for spec in sorted(registration.registry.values(), key=lambda spec: (spec.name, spec.version or 0)):
        if spec.name.startswith("BabyAI-"):
            known[_short(spec.id)] = (registration.load_env_creator(spec.entry_point), dict(spec.kwargs))
    return known


@cache
def load() -> Any:
    """The package, without the lines that it and its generator of levels print."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        package = import_module("minigrid")
    except ModuleNotFoundError as error:
        if error.name != "minigrid":
            raise
        raise MissingExtra("the environment babyai", "babyai", DISTRIBUTION) from None
    import_module("minigrid.envs.babyai.core.roomgrid_level").print = lambda *words: None  # type: ignore[attr-defined]
    import_module("minigrid.envs.babyai.core.verifier").use_done_actions = False  # type: ignore[attr-defined]
    return package


def _short(name: str) -> str:
    stem, _, version = name.removeprefix("BabyAI-").rpartition("-v")
    return stem if stem and version.isdigit() else name.removeprefix("BabyAI-")
