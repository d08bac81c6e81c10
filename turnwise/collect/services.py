"""Services for plans: the expert's attempts at a task, how attempts begin, and responses of the current policy to a text of the plan's own.
Plans ask for them through the task slots that they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.agent import Agent
from turnwise.agent.text import goal_of, well_formed
from turnwise.collect.warmstart import expert_trajectories
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Engine, Request, Response, Sampling
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.envs.scripts import Limits
from turnwise.util.seeds import derive

FIRST_SEQUENCE = 1 << 40  # of these responses: no attempt has such a number


def demonstrations(
    env: str, options: Mapping[str, Any], tasks: Sequence[Task], agent: Agent, max_turns: int, limits: Limits
) -> list[Trajectory]:
    """The expert's attempts, one per task, as attempts of this agent. Their turns are not learned from, and have log-probs of 0."""
    trajectories = expert_trajectories(env, dict(options), tasks, agent, max_turns=max_turns, limits=limits)
    for trajectory in trajectories:
        trajectory.turns = [replace(turn, logprobs=[0.0] * len(turn.response_ids), learned=False) for turn in trajectory.turns]
    return trajectories


def generate(engine: Engine, agent: Agent, sampling: Sampling, texts: Sequence[str], seed: int) -> list[Turn]:
    """The policy's responses to these messages as turns, with what the engine reports about their tokens: the message is the observation.
    A turn without tokens: the message was too long, or the engine failed."""
    prompts = [agent.maker.prompt(agent.chat.control.mark(text)) for text in texts]
    requests = [
        Request(k, prompt.ids, sampling, derive(seed, "answer", k), FIRST_SEQUENCE + k, prompt.messages or None)
        for k, prompt in enumerate(prompts)
        if prompt.fits
    ]
    engine.submit(requests)
    responses: dict[int, Response] = {}
    while engine.pending:
        responses |= {response.key: response for response in engine.poll()}
    for request in requests:
        engine.release(request.sequence)
    decode = agent.chat.decode
    return [_turn(text, prompts[k].ids, responses.get(k, Response(k)), decode) for k, text in enumerate(texts)]


def _turn(text: str, prompt_ids: Sequence[int], response: Response, decode: Callable[[Sequence[int]], str]) -> Turn:
    generated = response.text if response.text is not None else decode(response.token_ids)
    return Turn(
        text,
        observation=text,
        action=generated.strip(),
        response=generated,
        prompt_ids=prompt_ids,
        response_ids=response.token_ids,
        logprobs=response.logprobs,
        version=response.version,
        reports=response.reports,
    )


def openings(pool: Pool, starts: Sequence[Start]) -> list[str]:
    """What the agent is told first in these attempts: the goal, if the first observation does not state it, and that observation."""
    texts = list[str]()
    for first in range(0, len(starts), pool.size):
        some = starts[first : first + pool.size]
        results = pool.reset_all((slot, start.task, start.env_seed) for slot, start in enumerate(some))
        for start, result in zip(some, results, strict=True):
            texts.append("" if result.transition is None else _opening(start, result.observation))
    return texts


def _opening(start: Start, observation: Observation) -> str:
    goal, text = goal_of(start.task, observation), well_formed(observation.text.strip())
    return text if goal in text else f"{goal}\n{text}"
