"""What a run does for its plan: the expert's attempts at a task, how attempts begin, and answers of the current policy to a text of the
plan's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnwise.agent.text import goal_of, well_formed
from turnwise.collect.warmstart import expert_trajectories
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Request, Response
from turnwise.envs.base import Observation
from turnwise.setup.needs import reports
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.setup.system import System

FIRST_SEQUENCE = 1 << 40  # of answers: no attempt has such a number


def demonstrations(system: System, tasks: Sequence[Task]) -> list[Trajectory]:
    """The expert's attempts, one per task, as attempts of this agent. Their turns are not learned from, and have log-probs of 0."""
    env = system.config.env
    found = expert_trajectories(env.name, dict(env.options), tasks, system.agent, max_turns=system.max_turns, limits=system.limits)
    for trajectory in found:
        trajectory.turns = [replace(turn, logprobs=[0.0] * len(turn.response_ids), learned=False) for turn in trajectory.turns]
    return found


def answers(system: System, texts: Sequence[str], seed: int) -> list[str]:
    """The current policy's answers to these messages, drawn as in training; empty where the message is too long or the engine failed."""
    return [turn.response.strip() for turn in system.said(texts, seed)]


def said(system: System, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]:
    """The same as turns, with what the engine reports about their tokens: the message is the observation, the answer the response."""
    engine, chat = system.engine, system.agent.chat
    prompts = [system.agent.maker.prompt(chat.control.mark(text)) for text in texts]
    sampling = replace(system.sampling(temperature), report=reports(system.config))
    requests = [
        Request(k, prompt.ids, sampling, derive(seed, "answer", k), FIRST_SEQUENCE + k, prompt.messages or None)
        for k, prompt in enumerate(prompts)
        if prompt.fits
    ]
    engine.submit(requests)
    found: dict[int, Response] = {}
    while engine.pending:
        found |= {response.key: response for response in engine.poll()}
    for request in requests:
        engine.release(request.sequence)
    return [_turn(text, prompts[k].ids, found.get(k, Response(k)), chat.decode) for k, text in enumerate(texts)]


def _turn(text: str, prompt_ids: Sequence[int], response: Response, decode: Callable[[Sequence[int]], str]) -> Turn:
    said = response.text if response.text is not None else decode(response.token_ids)
    return Turn(
        text,
        observation=text,
        action=said.strip(),
        response=said,
        prompt_ids=prompt_ids,
        response_ids=response.token_ids,
        logprobs=response.logprobs,
        version=response.version,
        reports=response.reports,
    )


def openings(system: System, starts: Sequence[Start]) -> list[str]:
    """What the agent is told first in these attempts: the goal, if the first observation does not state it, and that observation."""
    pool, found = system.pool, list[str]()
    for first in range(0, len(starts), pool.size):
        some = starts[first : first + pool.size]
        results = pool.reset_all((slot, start.task, start.env_seed) for slot, start in enumerate(some))
        for start, result in zip(some, results, strict=True):
            found.append("" if result.transition is None else _opening(start, result.observation))
    return found


def _opening(start: Start, observation: Observation) -> str:
    goal, text = goal_of(start.task, observation), well_formed(observation.text.strip())
    return text if goal in text else f"{goal}\n{text}"


def evaluation(system: System, starts: Sequence[Start]) -> Sequence[Start]:
    """The attempts of an evaluation as the run's plan makes them."""
    plan: Any = system.plan
    temperature = system.config.eval.temperature
    asked = replace(system.places, say=lambda texts, seed: system.said(texts, seed, temperature))
    if hasattr(plan, "evaluation"):
        return list(plan.evaluation(asked, starts))
    return [plan.evaluated(start) for start in starts] if hasattr(plan, "evaluated") else starts  # a class that is no Plan
