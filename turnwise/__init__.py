"""Turnwise: reinforcement learning for multi-turn LLM agents, with credit for every turn."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from turnwise.config import plugins
from turnwise.util.errors import TurnwiseError, lacks_training, need_training
from turnwise.util.threads import wait_quietly
from turnwise.util.version import VERSION

wait_quietly()
plugins.look_in("turnwise.methods")

if TYPE_CHECKING:
    from turnwise import credit, methods, objectives
    from turnwise.api import evaluate, export, train
    from turnwise.collect.panel import Evaluation
    from turnwise.data.rollouts import Rollouts, Stop, Trajectory, Turn
    from turnwise.data.tasks import Task, TaskSet
    from turnwise.envs.base import Env, EpisodeOver, Observation, Transition
    from turnwise.envs.registry import make, tasks
    from turnwise.recipe.schema import Config as Recipe
    from turnwise.report.comparison import compare
    from turnwise.runs.exchange import read_trajectories, write_trajectories
    from turnwise.runs.folder import Result

__version__ = VERSION

__all__ = [
    "Env",
    "EpisodeOver",
    "Evaluation",
    "Observation",
    "Recipe",
    "Result",
    "Rollouts",
    "Stop",
    "Task",
    "TaskSet",
    "Trajectory",
    "Transition",
    "Turn",
    "TurnwiseError",
    "__version__",
    "compare",
    "credit",
    "evaluate",
    "export",
    "make",
    "methods",
    "objectives",
    "read_trajectories",
    "tasks",
    "train",
    "write_trajectories",
]

# Everything is imported when it is first asked for: where it lives, and under which name (none: the whole module). Processes of
# environments never ask for what loads torch, pydantic or numpy, and start sooner.
_LATER = {
    "Recipe": ("turnwise.recipe.schema", "Config"),
    **{name: (f"turnwise.{name}", "") for name in ("credit", "envs", "methods", "objectives", "train")},
    **{name: ("turnwise.api", name) for name in ("evaluate", "export")},
    "Evaluation": ("turnwise.collect.panel", "Evaluation"),
    **{name: ("turnwise.data.rollouts", name) for name in ("Rollouts", "Stop", "Trajectory", "Turn")},
    **{name: ("turnwise.data.tasks", name) for name in ("Task", "TaskSet")},
    **{name: ("turnwise.envs.base", name) for name in ("Env", "EpisodeOver", "Observation", "Transition")},
    **{name: ("turnwise.envs.registry", name) for name in ("make", "tasks")},
    "compare": ("turnwise.report.comparison", "compare"),
    **{name: ("turnwise.runs.exchange", name) for name in ("read_trajectories", "write_trajectories")},
    "Result": ("turnwise.runs.folder", "Result"),
}
_TRAINING = ("turnwise.api", "turnwise.train")  # what lies there needs the extra `train`


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    module, own = _LATER[name]
    if module in _TRAINING:
        need_training(f"turnwise.{name}")
    return getattr(import_module(module), own) if own else import_module(module)


def __dir__() -> list[str]:
    return sorted(name for name in __all__ if _LATER.get(name, ("",))[0] not in _TRAINING or not lacks_training())


class _Loop(ModuleType):
    """`turnwise.train` is the loop's module and the function that users call. Calling the module calls the function."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return import_module("turnwise.api").train(*arguments, **settings)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(import_module("turnwise.api").train)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return str(import_module("turnwise.api").train.__doc__)

    def __reduce__(self) -> Any:
        return import_module, (self.__name__,)  # the function may be sent to another process


class _Package(ModuleType):
    """This package. Python sets a submodule as an attribute here when it is first imported, whoever imports it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and type(value) is ModuleType:
            value.__class__ = _Loop
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
