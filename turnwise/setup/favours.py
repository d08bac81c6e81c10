"""What a run does for its plan: the expert's attempts at a task, and answers of the current policy to a text of the plan's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from turnwise.collect.warmstart import expert_trajectories
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.engines.base import Request
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
    engine, chat = system.engine, system.agent.chat
    prompts = [system.agent.maker.prompt(chat.control.mark(text)) for text in texts]
    requests = [
        Request(k, prompt.ids, system.sampling(), derive(seed, "answer", k), FIRST_SEQUENCE + k, prompt.messages or None)
        for k, prompt in enumerate(prompts)
        if prompt.fits
    ]
    engine.submit(requests)
    found: dict[int, str] = {}
    while engine.pending:
        for response in engine.poll():
            found[response.key] = response.text if response.text is not None else chat.decode(response.token_ids)
    for request in requests:
        engine.release(request.sequence)
    return [found.get(k, "").strip() for k in range(len(texts))]
