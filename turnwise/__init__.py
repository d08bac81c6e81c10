"""Turnwise: reinforcement learning for multi-turn LLM agents, with credit for every turn."""

from turnwise import credit
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Rollouts, Stop, Trajectory, Turn
from turnwise.tasks import Task, TaskSet

__version__ = "0.1.0"

__all__ = ["Rollouts", "Stop", "Task", "TaskSet", "Trajectory", "Turn", "TurnwiseError", "credit", "__version__"]
