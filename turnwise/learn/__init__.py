"""The learner: owns the weights and the optimiser. See docs/guides/learner.md.

Names are loaded when they are asked for, so that `import turnwise.learn` costs no torch and no transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner
    from turnwise.learn.lora import add_lora
    from turnwise.learn.packing import Packed, pack
    from turnwise.learn.sections import OptimiserSettings, SftSettings, ValueSettings
    from turnwise.learn.settings import LearnerSettings
    from turnwise.learn.sft import as_trajectories, warm_start

_HOME = {
    "Learner": "learner",
    "LearnerSettings": "settings",
    "OptimiserSettings": "sections",
    "ValueSettings": "sections",
    "add_lora": "lora",
    "Packed": "packing",
    "pack": "packing",
    "SftSettings": "sections",
    "as_trajectories": "sft",
    "warm_start": "sft",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "Learner", "LearnerSettings", "OptimiserSettings", "ValueSettings",
    "add_lora",
    "Packed", "pack",
    "SftSettings", "as_trajectories", "warm_start",
]  # fmt: skip
