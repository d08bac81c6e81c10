"""The supervised warm start: the environment's expert plays, the model learns its actions in the form that the prompt asks for. If there
is no expert and the environment lists its actions, a random agent plays: a model that starts from nothing then learns at least to name
admissible actions, and reinforcement has something to choose from.

The expert's actions become responses in the agent's own context, turn by turn, so that the examples have exactly the tokens that the
model will see when it plays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnwise.agent import Agent
from turnwise.agent.base import Context, Parsed
from turnwise.collect.players import ASK_EXPERT, NO_ADVICE, Advised, ExpertPlayer, RandomPlayer, ScriptedPlayer, Situation, offers
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation
from turnwise.envs.pool import EnvResult, Fault, Pool
from turnwise.envs.registry import portable
from turnwise.envs.scripts import Limits, Play, Reset, play_all
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

RandomTurn = tuple[int, list[int], list[int]]  # a random turn: its number, prompt and response
ENOUGH_BETTER = 0.1  # of the tasks: fewer examples would be memorised
OnFault = Callable[[Trajectory, EnvResult], None]


def expert_trajectories(
    name: str,
    options: dict[str, Any],
    tasks: Iterable[Task],
    agent: Agent,
    *,
    max_turns: int,
    noise: float = 0.0,
    learn_all: bool = False,
    seed: int = 0,
    on_task: Callable[[], None] = lambda: None,
    limits: Limits | None = None,
    on_fault: OnFault = lambda trajectory, result: None,
) -> list[Trajectory]:
    """The expert's attempts at the tasks as trajectories of prompts and responses. In a share `noise` of the turns a random action is
    taken instead: that turn is part of what the model sees but not of what it learns, so it learns how to continue from there. If a later
    prompt shows the random action, `info["chance"]` of that turn holds the token spans in the prompt that show it, so that they are not
    learned as text. With `learn_all`, random turns are learned like the expert's: the examples are those of a clumsy player. Actions that
    the agent is never shown (`hide_actions`) are never taken at random either. An attempt that a fault ended is included, with its stop
    reason."""
    player = ExpertPlayer(noise, agent.settings.hide_actions, asks=noise > 0 and offers(name, options, "random_action"))
    plays = [_play(task, number, agent, max_turns, player, derive(seed, task.id), on_fault, learn_all) for number, task in enumerate(tasks)]
    return _all(Advised(portable(name, options)), plays, limits or Limits(), on_task)


def random_trajectories(
    name: str,
    options: dict[str, Any],
    tasks: Iterable[Task],
    agent: Agent,
    *,
    max_turns: int,
    tries: int = 1,
    seed: int = 0,
    on_task: Callable[[], None] = lambda: None,
    limits: Limits | None = None,
    on_fault: OnFault = lambda trajectory, result: None,
) -> list[Trajectory]:
    """Attempts that take any of the listed actions, all equally likely. They show the form of an action and, since the best of `tries`
    attempts at each task is kept, also a little of what to do. If enough tasks have an attempt that is better than the average of all,
    the others are left out."""
    limits, factory, tasks = limits or Limits(), Advised(portable(name, options), required=False), list(tasks)
    with limits.pool(factory, len(tasks)) as pool:
        scores_by_task = []
        for scores in play_all(pool, (_score(task, max_turns, tries, seed) for task in tasks), limits.cancelled):
            scores_by_task.append(scores)
            on_task()
    returns = [score.reward for scores in scores_by_task for score in scores if math.isfinite(score.reward)]
    mean = sum(returns) / max(len(returns), 1)
    best = [(task, max(scores)) for task, scores in zip(tasks, scores_by_task, strict=False) if scores]
    better = [(task, score) for task, score in best if score.reward > mean]
    chosen = better if len(better) >= ENOUGH_BETTER * len(best) else best
    player = RandomPlayer()
    plays = [
        _play(task, number, agent, max_turns, player, derive(seed, task.id, -score.minus_number), on_fault)
        for number, (task, score) in enumerate(chosen)
    ]
    return _all(factory, plays, limits)


class Score(NamedTuple):
    """The rank of a random attempt; the greatest is the best: won, the highest return, the fewest turns, the first."""

    won: bool
    reward: float
    minus_turns: int
    minus_number: int


def _score(task: Task, max_turns: int, tries: int, seed: int) -> Play[list[Score]]:
    """Random attempts at one task, without prompts. One with a fault is left out here; the fault is reported when it is played as an
    example."""
    scores, player = [], RandomPlayer()
    for number in range(tries):
        result, reward, t = (yield Reset(task)), 0.0, 0
        chance = derive(seed, task.id, number)
        while t < max_turns and not result.over and result.observation.actions:
            result = yield player.act(result.observation, Situation(task, chance, t)) or ""
            t += 1
            reward += result.transition.reward if result.transition is not None else 0.0
        won = result.transition is not None and result.transition.success
        scores.append(Score(won, reward if result.transition is not None else -math.inf, -t, -number))
    return scores


def lists_actions(pool: Pool, tasks: Iterable[Task]) -> bool:
    """Whether the environment lists its actions at the start of one of these tasks."""

    def first(task: Task) -> Play[bool]:
        result = yield Reset(task)
        return result.transition is not None and bool(result.observation.actions)

    return any(play_all(pool, [first(task) for task in tasks]))


def demonstrated(
    name: str,
    options: dict[str, Any],
    tasks: TaskSet,
    examples: Sequence[Trajectory],
    agent: Agent,
    *,
    limits: Limits | None = None,
    on_fault: OnFault = lambda trajectory, result: None,
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
    plays = [
        _play(known[one.task], number, agent, len(one.turns), ScriptedPlayer([turn.action for turn in one.turns]), 0, on_fault, example=one)
        for number, one in enumerate(examples)
    ]
    return _all(portable(name, options), plays, limits or Limits())


def _all(
    factory: Callable[[], Any], plays: Sequence[Play[Trajectory]], limits: Limits, on_task: Callable[[], None] = lambda: None
) -> list[Trajectory]:
    """The results of the plays, in a separate pool."""
    trajectories = []
    with limits.pool(factory, len(plays)) as pool:
        for trajectory in play_all(pool, plays, limits.cancelled):
            trajectories.append(trajectory)
            on_task()
    return trajectories


def _ended(trajectory: Trajectory, result: EnvResult, on_fault: OnFault) -> Trajectory:
    """An attempt that a fault has ended."""
    trajectory.stop = Stop.ENVIRONMENT_TIMEOUT if result.fault is Fault.TIMEOUT else Stop.ENVIRONMENT_FAULT
    trajectory.stop_detail = result.message
    on_fault(trajectory, result)
    return trajectory


def _play(
    task: Task,
    number: int,
    agent: Agent,
    max_turns: int,
    player: ExpertPlayer | RandomPlayer | ScriptedPlayer,
    seed: int,
    on_fault: OnFault,
    learn_all: bool = False,
    example: Trajectory | None = None,
) -> Play[Trajectory]:
    """One attempt. `example` is a recorded one whose actions the player repeats: it has the seed, and the thoughts before actions."""
    trajectory = Trajectory(number, number, task=task.id)
    result = yield Reset(task) if example is None else Reset(task, example.seed)
    if result.transition is None:
        return _ended(trajectory, result, on_fault)
    observation, players = result.observation, PlayerContexts(task, agent)
    for played in range(max_turns):
        own = players.see(observation)
        t, random_turns, prompt = own.turns, own.random_turns, own.context.prompt()
        if not prompt.fits:
            break
        if isinstance(player, RandomPlayer) and not observation.actions:  # a random agent has nothing left to do
            break
        asked = player.act(observation, Situation(task, seed, played))
        result = yield asked or ASK_EXPERT
        if result.message.startswith(NO_ADVICE):  # a random action has spoilt the task: there is nothing to learn from here on
            break
        if (transition := result.transition) is None:
            return _ended(trajectory, result, on_fault)
        if example is None:
            action, thought, words = str(transition.info["action"]), "", str(transition.info.get("words", ""))
        else:
            action, thought, words = example.turns[played].action, example.turns[played].thought, ""
        response = agent.write(action, thought, words)
        if asked == ASK_EXPERT or learn_all or not isinstance(player, ExpertPlayer):
            turn = Turn(observation.key, transition.reward, True, observation.text, thought, action, action, prompt.ids, response)
            turn.images = prompt.images
            if shown := _shown(random_turns, t, prompt.ids, agent):
                turn.info = {"chance": shown}
            trajectory.turns.append(turn)
        else:
            random_turns.append((t, list(prompt.ids), list(response)))
        observation, trajectory.success = transition.observation, transition.done and transition.success
        if transition.done:
            break
        own.said = response, Parsed(action)
    return trajectory


@dataclass
class PlayerContext:
    """What one player of an attempt has seen and said. `said` waits for what it led to."""

    context: Context
    turns: int = 0
    said: tuple[Sequence[int], Parsed] | None = None
    random_turns: list[RandomTurn] = field(default_factory=list)


class PlayerContexts:
    """The contexts of an attempt: one, or one per player in an environment with several."""

    def __init__(self, task: Task, agent: Agent):
        self._task, self._agent = task, agent
        self._players: dict[int, PlayerContext] = {}

    def see(self, observation: Observation) -> PlayerContext:
        """The player that is to move, with this observation in its context."""
        if (own := self._players.get(observation.seat)) is None:
            own = self._players[observation.seat] = PlayerContext(self._agent.context())
            own.context.start(self._task, observation)
        elif own.said is not None:
            own.context.record(*own.said, observation)
            own.said, own.turns = None, own.turns + 1
        return own


def _shown(random_turns: Sequence[RandomTurn], t: int, prompt: Sequence[int], agent: Agent) -> list[tuple[int, int]]:
    """The spans of a prompt's tokens that show random actions. A dialogue that only grows holds them word for word. A prompt that is
    rebuilt every turn shows them somewhere, so the whole prompt counts, as long as its window reaches back that far."""
    spans, ids = [], list(prompt)
    for number, before, response in random_turns:
        if ids[: len(before)] == before and ids[len(before) : len(before) + len(response)] == response:
            spans.append((len(before), len(before) + len(response)))
        elif agent.settings.context != "window" or t - number <= agent.settings.history:
            return [(0, len(ids))]
    return spans
