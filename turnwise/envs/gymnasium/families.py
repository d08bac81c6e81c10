"""Families of Gymnasium environments whose observations are arrays, and which a plugin describes in words.

A plugin registers a family with `add_family`: the start of its ids, the class that all of them share, and two functions given as text
(`"module:function"`), imported on first use. `turnwise-envs` registers MiniGrid and NetHack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from turnwise.config import addons, plugins
from turnwise.config.kinds import DESCRIBER
from turnwise.config.loading import load_reference, load_registered
from turnwise.envs.gymnasium.toytext import Words
from turnwise.util.errors import TurnwiseError


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
            command = addons.install_command(extra)
            raise TurnwiseError(f"gymnasium environment {name!r} is described in words by another package. Install it with: {command}")
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
