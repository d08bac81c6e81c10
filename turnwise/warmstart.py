"""The supervised warm start: the environment's expert plays, the model learns its actions in the form that the prompt asks for.

The expert's actions become responses in the agent's own context, turn by turn, so that what is learned has exactly the tokens that the
model will see when it plays itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from turnwise.agent import Agent
from turnwise.agent.base import Parsed
from turnwise.envs import registry
from turnwise.envs.play import expert_plan
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Trajectory, Turn
from turnwise.tasks import Task


def expert_trajectories(
    name: str, options: dict[str, Any], tasks: Iterable[Task], agent: Agent, on_task: Callable[[], None] = lambda: None
) -> list[Trajectory]:
    """The expert's attempts at the tasks as trajectories of prompts and responses."""
    env = registry.make(name, **options)
    try:
        found = []
        for number, task in enumerate(tasks):
            found.append(_play(env, name, task, number, agent))
            on_task()
        return found
    finally:
        registry.close(env)


def has_expert(name: str, options: dict[str, Any]) -> bool:
    """Whether the environment can say what to do."""
    env = registry.make(name, **options)
    try:
        return callable(getattr(env, "expert", None)) or callable(getattr(env, "expert_action", None))
    finally:
        registry.close(env)


def _play(env: Any, name: str, task: Task, number: int, agent: Agent) -> Trajectory:
    plan = expert_plan(env, task, 0)
    if plan is None:
        raise TurnwiseError(f"environment {name!r} has no expert, so there is nothing to learn from: remove the recipe's [sft] section")
    observation = env.reset(task, 0)
    context, trajectory = agent.context(), Trajectory(number, number, task=task.id)
    context.start(task, observation)
    for action in plan:
        prompt = context.prompt()
        if not prompt.fits:
            break
        response = agent.write(action)
        transition = env.step(action)
        trajectory.turns.append(
            Turn(observation.key, float(transition.reward), True, observation.text, "", action, action, prompt.ids, response)
        )
        observation, trajectory.success = transition.observation, bool(transition.success)
        if transition.done:
            break
        context.record(response, Parsed(action), observation)
    return trajectory
