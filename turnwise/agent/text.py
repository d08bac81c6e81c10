"""Small helpers for text from outside: environments and models may produce any text."""

from __future__ import annotations

from turnwise.data.tasks import Task, task_line
from turnwise.envs.base import Observation


def well_formed(text: str) -> str:
    """The text with every lone surrogate replaced, so that it can be encoded as UTF-8 and read by any tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def goal_of(task: Task, first: Observation) -> str:
    """What the agent has to do, for prompts that no longer show the first observation.

    The line of the first observation that starts with "Your task is"; else the task's own `goal`; else the whole first observation.
    """
    return stated_goal(task, first) or well_formed(first.text.strip())


def stated_goal(task: Task, first: Observation) -> str:
    """The goal, if the observation or the task states one; otherwise empty."""
    goal = task_line(first.text) or task.data.get("goal")
    return well_formed(goal.strip()) if isinstance(goal, str) else ""
