"""Turnwise: reinforcement learning for multi-turn LLM agents, with credit for every turn."""

from typing import TYPE_CHECKING, Any

from turnwise import credit
from turnwise.envs.base import Env, EpisodeOver, Observation, Transition
from turnwise.envs.registry import make, tasks
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Rollouts, Stop, Trajectory, Turn
from turnwise.tasks import Task, TaskSet
from turnwise.threads import wait_quietly

wait_quietly()

if TYPE_CHECKING:
    from turnwise.api import evaluate, export, train
    from turnwise.exchange import read_trajectories, write_trajectories
    from turnwise.report.comparison import compare

__version__ = "0.1.0"

__all__ = [
    "Env",
    "EpisodeOver",
    "Observation",
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
    "read_trajectories",
    "tasks",
    "train",
    "write_trajectories",
]


def __getattr__(name: str) -> Any:
    """`train`, `evaluate` and `export` load torch, so they are imported when they are first asked for."""
    if name in ("train", "evaluate", "export"):
        from turnwise import api

        return getattr(api, name)
    if name == "compare":
        from turnwise.report.comparison import compare

        return compare
    if name in ("read_trajectories", "write_trajectories"):
        from turnwise import exchange

        return getattr(exchange, name)
    raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
