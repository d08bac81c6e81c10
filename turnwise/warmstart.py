"""The supervised warm start: the environment's expert plays, the model learns its actions in the form that the prompt asks for.

The expert's actions become responses in the agent's own context, turn by turn, so that what is learned has exactly the tokens that the
model will see when it plays itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turnwise.agent import Agent
from turnwise.agent.base import Parsed
from turnwise.collect.players import ASK_EXPERT, AdvisedEnv, ExpertPlayer, NoAdvice, Place
from turnwise.envs import registry
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Trajectory, Turn
from turnwise.seeds import derive
from turnwise.tasks import Task, TaskSet

Chance = tuple[int, list[int], list[int]]  # a turn that chance played: its number, prompt and response


def expert_trajectories(
    name: str,
    options: dict[str, Any],
    tasks: Iterable[Task],
    agent: Agent,
    *,
    max_turns: int,
    noise: float = 0.0,
    seed: int = 0,
    on_task: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Trajectory]:
    """The expert's attempts at the tasks as trajectories of prompts and responses. In a share `noise` of the turns chance plays instead:
    that turn is part of what the model sees and not of what it learns, so it learns how to go on from there. Where a later prompt shows
    what chance did, `info["chance"]` of that turn says which of the prompt's tokens hold it, so that they are not learned as text."""
    env = AdvisedEnv(registry.make(name, **options))
    try:
        found = []
        for number, task in enumerate(tasks):
            if cancelled():
                break
            found.append(_play(env, task, number, agent, max_turns, ExpertPlayer(noise), derive(seed, task.id)))
            on_task()
        return found
    finally:
        registry.close(env)


def demonstrated(name: str, options: dict[str, Any], tasks: TaskSet, examples: Sequence[Trajectory], agent: Agent) -> list[Trajectory]:
    """Recorded trajectories as examples for this agent: their actions are played again, so that every prompt is as the agent will see it.
    Only those that succeed again are kept; the tasks are looked up among `tasks` by their ids."""
    wanted = {example.task for example in examples}
    known = {task.id: task for task in tasks if task.id in wanted}
    if missing := sorted(wanted - set(known)):
        raise TurnwiseError(
            f"sft.file: {len(missing)} of {len(wanted)} tasks are not training tasks here (the first: {missing[0]!r}). "
            "Examples must come from the recipe's environment, split and number of tasks (env.split, env.tasks)"
        )
    env = registry.make(name, **options)
    try:
        found = [_play_recorded(env, known[example.task], number, example, agent) for number, example in enumerate(examples)]
    finally:
        registry.close(env)
    return [example for example in found if example.success]


def _play_recorded(env: Any, task: Task, number: int, example: Trajectory, agent: Agent) -> Trajectory:
    observation = env.reset(task, example.seed)
    context, trajectory = agent.context(), Trajectory(number, number, task=task.id)
    context.start(task, observation)
    for recorded in example.turns:
        prompt = context.prompt()
        if not prompt.fits:
            break
        transition, response = env.step(recorded.action), agent.write(recorded.action, recorded.thought)
        turn = Turn(observation.key, float(transition.reward), True, observation.text, recorded.thought, recorded.action, recorded.action)
        turn.prompt_ids, turn.response_ids, turn.images = prompt.ids, response, prompt.images
        trajectory.turns.append(turn)
        observation, trajectory.success = transition.observation, bool(transition.done and transition.success)
        if transition.done:
            break
        context.record(response, Parsed(recorded.action), observation)
    return trajectory


def has_expert(name: str, options: dict[str, Any]) -> bool:
    """Whether the environment can say what to do."""
    env = registry.make(name, **options)
    try:
        return callable(getattr(env, "expert", None)) or callable(getattr(env, "expert_action", None))
    finally:
        registry.close(env)


def _play(env: AdvisedEnv, task: Task, number: int, agent: Agent, max_turns: int, player: ExpertPlayer, seed: int) -> Trajectory:
    observation = env.reset(task, 0)
    context, trajectory = agent.context(), Trajectory(number, number, task=task.id)
    context.start(task, observation)
    chance: list[Chance] = []
    for t in range(max_turns):
        prompt = context.prompt()
        if not prompt.fits:
            break
        asked = player.act(observation, Place(task, seed, t))
        try:
            transition = env.step(asked or ASK_EXPERT)
        except NoAdvice:  # chance has spoiled the task: there is nothing to learn from here on
            break
        action = str(transition.info["action"])
        response = agent.write(action)
        if asked == ASK_EXPERT:
            turn = Turn(observation.key, float(transition.reward), True, observation.text, "", action, action, prompt.ids, response)
            turn.images = prompt.images
            if shown := _shown(chance, t, prompt.ids, agent):
                turn.info = {"chance": shown}
            trajectory.turns.append(turn)
        else:
            chance.append((t, list(prompt.ids), list(response)))
        observation, trajectory.success = transition.observation, bool(transition.success)
        if transition.done:
            break
        context.record(response, Parsed(action), observation)
    return trajectory


def _shown(chance: Sequence[Chance], t: int, prompt: Sequence[int], agent: Agent) -> list[tuple[int, int]]:
    """The spans of a prompt's tokens that show what chance did. A dialogue that only grows holds it word for word; a prompt that is written
    anew tells it somewhere, so all of it is meant, as long as its window reaches back so far."""
    spans, ids = [], list(prompt)
    for number, before, said in chance:
        if ids[: len(before)] == before and ids[len(before) : len(before) + len(said)] == said:
            spans.append((len(before), len(before) + len(said)))
        elif agent.settings.context != "window" or t - number <= agent.settings.history:
            return [(0, len(ids))]
    return spans
