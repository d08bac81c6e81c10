"""Texts for Gymnasium environments that return bare numbers or arrays: names of the actions, the goal, and the state in sentences.

Two small classics have theirs here. For a family of environments, such as MiniGrid, a plugin registers them with `add_family`: the
start of its ids, the class that all of them share, and two functions given as text (`"module:function"`), imported on first use. Other
environments do not need this: their options set the same things.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from turnwise.config import addons, plugins
from turnwise.config.kinds import DESCRIBER
from turnwise.config.loading import load_reference, load_registered

HIGHLIGHTED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LAST_ACTION = re.compile(r"^\s*\(\w+\)[ \t]*\n?", re.MULTILINE)  # a picture of the state must not depend on how it was reached


@dataclass(frozen=True)
class Words:
    """The texts of an environment."""

    actions: tuple[str, ...] | None = None
    goal: str = ""
    success: str = "reward"
    draw: bool = False  # show the text rendering
    describe: Callable[[Any, Any], str] | None = None  # (the bare environment, the observation) → text
    mission: Callable[[Any], str] | None = None  # the bare environment → the goal of a task, if it differs between tasks
    anchor: Callable[[Any], bytes] | None = None  # the bare environment → a key of its state, if the text does not show all of it
    seed: Callable[[Any, int], None] | None = None  # (the bare environment, a number): what a reset with a seed leaves out


def drawing(rendered: str) -> str:
    """A text rendering without colours; what was highlighted is in square brackets."""
    text = COLOUR.sub("", HIGHLIGHTED.sub(lambda found: f"[{found[1].strip() or ' '}]", rendered))
    return LAST_ACTION.sub("", text).strip("\n")


def _frozen_lake(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(env.ncol))
    return f"You stand in row {row}, column {column}, counted from 0 at the top left. S start, F ice, H hole, G goal."


def _cliff(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(env.shape[1]))
    return f"You (x) stand in row {row}, column {column}, counted from 0 at the top left. C is the cliff, T the goal."


CLASSICS: dict[str, Words] = {
    "FrozenLake": Words(
        ("left", "down", "right", "up"),
        "walk over the frozen lake to the goal without falling into a hole. The ice may be slippery: a step may then go sideways.",
        draw=True,
        describe=_frozen_lake,
    ),
    "CliffWalking": Words(
        ("up", "right", "down", "left"),
        "walk to the goal in few steps and keep off the cliff: falling costs 100 and brings you back to the start.",
        success="terminated",
        draw=True,
        describe=_cliff,
    ),
}


def words_for(name: str) -> Words | None:
    """The texts of a classic by its Gymnasium id (`FrozenLake-v1`, `FrozenLake8x8-v1`), None for any other environment."""
    stem = name.rpartition(":")[2].rpartition("/")[2]
    return next((words for prefix, words in CLASSICS.items() if stem.startswith(prefix)), None)


class Family(NamedTuple):
    """Gymnasium environments of one package."""

    prefixes: tuple[str, ...]  # of their ids
    base: str  # the class that all of them inherit from, as "module.Class"
    prepare: str  # an id → default arguments. It imports the package, which registers its ids: Gymnasium does not find it by itself
    words: str  # the environment → its texts


_families: list[Family] = []


def add_family(family: Family) -> None:
    """Let Gymnasium environments of this family be made by their ids and shown as text."""
    if family not in _families:
        _families.append(family)


def prepare(name: str) -> Mapping[str, Any]:
    """Import the package that registers an id, if it belongs to a family. Returns default arguments."""
    plugins.load()
    for family in _families:
        if name.startswith(family.prefixes):
            defaults: Mapping[str, Any] = load_registered(family.prepare)(name)
            return defaults
    for prefix, extra in addons.GYMNASIUM_IDS.items():
        if name.startswith(prefix):
            raise addons.comes_with(f"a description in words of the gymnasium environment {name!r}", extra)
    return {}


def recognised(env: Any) -> Words | None:
    """The texts of an environment that belongs to a family by its class; None for any other."""
    plugins.load()
    bases = {f"{base.__module__}.{base.__name__}" for base in type(env.unwrapped).__mro__}
    for family in _families:
        if family.base in bases:
            words: Words = load_registered(family.words)(env)
            return words
    return None


def described_by(function: str | Callable[[Any, Any], str], words: Words | None) -> Words:
    """The texts of an environment with a user's own description: a function of (the bare environment, the observation)."""
    own = function if callable(function) else load_reference(function, DESCRIBER)
    return replace(words or Words(), describe=own, draw=False, anchor=None)
