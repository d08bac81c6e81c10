"""The supervised warm start: the environment's expert plays, the model learns its actions in the form that the prompt asks for.

The expert's actions become responses in the agent's own context, turn by turn, so that what is learned has exactly the tokens that the
model will see when it plays itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turnwise.agent import Agent
from turnwise.agent.base import Parsed
from turnwise.collect.players import ASK_EXPERT, NO_ADVICE, Advised, ExpertPlayer, Place, RandomPlayer
from turnwise.envs import registry
from turnwise.envs.pool import Fault, Result
from turnwise.envs.registry import portable
from turnwise.envs.scripts import Limits, Play, Reset, play_all
from turnwise.errors import TurnwiseError
from turnwise.rollouts import Stop, Trajectory, Turn
from turnwise.seeds import derive
from turnwise.tasks import Task, TaskSet

Chance = tuple[int, list[int], list[int]]  # a turn that chance played: its number, prompt and response
Hear = Callable[[Trajectory, Result], None]


def unheard(trajectory: Trajectory, result: Result) -> None:
    """Nobody listens to faults."""


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
    limits: Limits | None = None,
    hear: Hear = unheard,
) -> list[Trajectory]:
    """The expert's attempts at the tasks as trajectories of prompts and responses. In a share `noise` of the turns chance plays instead:
    that turn is part of what the model sees and not of what it learns, so it learns how to go on from there. Where a later prompt shows
    what chance did, `info["chance"]` of that turn says which of the prompt's tokens hold it, so that they are not learned as text. An
    attempt that a fault ended is among them, with its stop reason."""
    player = ExpertPlayer(noise)
    plays = [_play(task, number, agent, max_turns, player, derive(seed, task.id), hear) for number, task in enumerate(tasks)]
    return _all(Advised(portable(name, options)), plays, limits or Limits(), on_task)


def demonstrated(
    name: str,
    options: dict[str, Any],
    tasks: TaskSet,
    examples: Sequence[Trajectory],
    agent: Agent,
    *,
    limits: Limits | None = None,
    hear: Hear = unheard,
) -> list[Trajectory]:
    """Recorded trajectories as examples for this agent: their actions are played again, so that every prompt is as the agent will see it.
    Whether each succeeds again is in its `success`; the tasks are looked up among `tasks` by their ids."""
    wanted = {example.task for example in examples}
    known = {task.id: task for task in tasks if task.id in wanted}
    if missing := sorted(wanted - set(known)):
        raise TurnwiseError(
            f"sft.file: {len(missing)} of {len(wanted)} tasks are not training tasks here (the first: {missing[0]!r}). "
            "Examples must come from the recipe's environment, split and number of tasks (env.split, env.tasks)"
        )
    plays = [_play_recorded(known[example.task], number, example, agent, hear) for number, example in enumerate(examples)]
    return _all(portable(name, options), plays, limits or Limits())


def _all(
    factory: Callable[[], Any], plays: Sequence[Play[Trajectory]], limits: Limits, on_task: Callable[[], None] = lambda: None
) -> list[Trajectory]:
    """What the plays give, in a pool of their own."""
    found = []
    with limits.pool(factory, len(plays)) as pool:
        for trajectory in play_all(pool, plays, limits.cancelled):
            found.append(trajectory)
            on_task()
    return found


def _play_recorded(task: Task, number: int, example: Trajectory, agent: Agent, hear: Hear) -> Play[Trajectory]:
    trajectory = Trajectory(number, number, task=task.id)
    result = yield Reset(task, example.seed)
    if result.transition is None:
        return _ended(trajectory, result, hear)
    observation, context = result.observation, agent.context()
    context.start(task, observation)
    for recorded in example.turns:
        prompt = context.prompt()
        if not prompt.fits:
            break
        result = yield recorded.action
        if (transition := result.transition) is None:
            return _ended(trajectory, result, hear)
        response = agent.write(recorded.action, recorded.thought)
        turn = Turn(observation.key, transition.reward, True, observation.text, recorded.thought, recorded.action, recorded.action)
        turn.prompt_ids, turn.response_ids, turn.images = prompt.ids, response, prompt.images
        trajectory.turns.append(turn)
        observation, trajectory.success = transition.observation, transition.done and transition.success
        if transition.done:
            break
        context.record(response, Parsed(recorded.action), observation)
    return trajectory


def _ended(trajectory: Trajectory, result: Result, hear: Hear) -> Trajectory:
    """An attempt that a fault has ended."""
    trajectory.stop = Stop.ENVIRONMENT_TIMEOUT if result.fault is Fault.TIMEOUT else Stop.ENVIRONMENT_FAULT
    trajectory.stop_detail = result.message
    hear(trajectory, result)
    return trajectory


def has_expert(name: str, options: dict[str, Any]) -> bool:
    """Whether the environment can say what to do."""
    env = registry.make(name, **options)
    try:
        return callable(getattr(env, "expert", None)) or callable(getattr(env, "expert_action", None))
    finally:
        registry.close(env)


def _play(
    task: Task, number: int, agent: Agent, max_turns: int, player: ExpertPlayer | RandomPlayer, seed: int, hear: Hear
) -> Play[Trajectory]:
    trajectory = Trajectory(number, number, task=task.id)
    result = yield Reset(task)
    if result.transition is None:
        return _ended(trajectory, result, hear)
    observation, context = result.observation, agent.context()
    context.start(task, observation)
    chance: list[Chance] = []
    for t in range(max_turns):
        prompt = context.prompt()
        if not prompt.fits:
            break
        asked = player.act(observation, Place(task, seed, t)) or ASK_EXPERT
        result = yield asked
        if result.message.startswith(NO_ADVICE):  # chance has spoiled the task: there is nothing to learn from here on
            break
        if (transition := result.transition) is None:
            return _ended(trajectory, result, hear)
        action = str(transition.info["action"])
        response = agent.write(action)
        if asked == ASK_EXPERT:
            turn = Turn(observation.key, transition.reward, True, observation.text, "", action, action, prompt.ids, response)
            turn.images = prompt.images
            if shown := _shown(chance, t, prompt.ids, agent):
                turn.info = {"chance": shown}
            trajectory.turns.append(turn)
        else:
            chance.append((t, list(prompt.ids), list(response)))
        observation, trajectory.success = transition.observation, transition.success
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
