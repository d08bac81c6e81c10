"""Snapshots of Gymnasium's small classics: their state is a handful of numbers and a generator.

Other environments keep their state anywhere, so it cannot be saved: a branch plays the actions again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PACKAGE = "gymnasium.envs.toy_text."
REMEMBERED = ("s", "lastaction", "fickle_step", "taxi_orientation", "player", "dealer")


def is_small_classic(env: Any) -> bool:
    """Whether an environment is one of them, with only the usual wrappers around it."""
    return type(env.unwrapped).__module__.startswith(PACKAGE) and all(
        type(layer).__module__.startswith("gymnasium.wrappers.common") for layer in _layers(env)
    )


def remembered(env: Any) -> dict[str, Any]:
    """The state of an environment, in JSON values: its numbers, its generator, and how many steps were made."""
    bare = env.unwrapped
    own = {name: as_json(getattr(bare, name)) for name in REMEMBERED if hasattr(bare, name)}
    steps = [getattr(layer, "_elapsed_steps", None) for layer in _layers(env)]
    return {"own": own, "chance": bare.np_random.bit_generator.state, "steps": steps}


def remember(env: Any, kept: Mapping[str, Any]) -> None:
    """Restore the state that `remembered` returned. The environment was reset before, so what a reset makes exists."""
    bare, layers = env.unwrapped, list(_layers(env))
    if set(kept["own"]) != {name for name in REMEMBERED if hasattr(bare, name)} or len(kept["steps"]) != len(layers):
        raise ValueError("it is of another environment, or of another version of Gymnasium")
    generator = np.random.PCG64()
    generator.state = kept["chance"]
    bare.np_random = np.random.Generator(generator)
    for name, value in kept["own"].items():
        setattr(bare, name, list(value) if isinstance(value, list) else value)
    for layer, steps in zip(layers, kept["steps"], strict=True):
        if steps is not None:
            layer._elapsed_steps = int(steps)


def as_json(value: Any) -> Any:
    """The output of an environment, in JSON values."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def board(env: Any) -> str:
    """Its map, which may be random; empty if it has none."""
    drawn = getattr(env.unwrapped, "desc", None)
    return "" if drawn is None else b"/".join(b"".join(row) for row in np.asarray(drawn, "c").tolist()).decode("latin-1")


def _layers(env: Any) -> list[Any]:
    found = []
    while env is not env.unwrapped:
        found.append(env)
        env = env.env
    return found
